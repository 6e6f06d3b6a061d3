//! The ladder as rows: what each rung reached and what it took.

use super::figure::rows;
use crate::record::Records;
use crate::record::run::{Run, Status};
use crate::units::{format_bytes, format_tokens};

/// The rungs of a folder.
pub struct Ladder<'a> {
    /// Those that were begun, in the order in which they ran.
    pub rungs: Vec<Rung<'a>>,
    /// Names of those that the experiment file has and that no row is of.
    pub not_run: Vec<String>,
}

/// One rung's result.
pub struct Rung<'a> {
    pub name: &'a str,
    /// What it adds, as the experiment file says.
    pub adds: String,
    /// The longest run that ended well.
    pub longest: Option<&'a Run>,
    /// The next length, or another that ran out of memory.
    pub beyond: Option<&'a Run>,
    /// The attempt that ran last.
    pub last: Option<&'a Run>,
    /// Whether the experiment ends it at its longest length, whatever the memory would allow.
    pub stops_by_design: bool,
}

impl<'a> Ladder<'a> {
    /// The ladder that the rows tell of.
    pub fn of(records: &'a Records) -> Ladder<'a> {
        let file = records.runs.first().map_or(Vec::new(), |r| rows::rungs_of_file(&r.experiment_toml));
        let rung = |r: rows::Rung<'a>| Rung {
            name: r.name,
            adds: file.iter().find(|f| f.name == r.name).map_or(String::new(), |f| f.adds.clone()),
            longest: r.longest(),
            beyond: r.runs.iter().rev().find(|r| r.status == Status::OutOfMemory).copied(),
            last: r.runs.last().copied(),
            stops_by_design: r.stops_by_design(),
        };
        let rungs: Vec<Rung> = rows::rungs(records).into_iter().map(rung).collect();
        let begun = |name: &String| rungs.iter().any(|r| r.name == name);
        let not_run = file.iter().map(|f| &f.name).filter(|name| !begun(name)).cloned().collect();
        Ladder { rungs, not_run }
    }

    /// The run that ratios are to: the first rung's longest, where the ladder begins with it and it ended well.
    pub fn base(&self) -> Option<&'a Run> {
        let first = self.rungs.first()?;
        let file = rows::rungs_of_file(&first.last?.experiment_toml);
        file.first().is_none_or(|f| f.name == first.name).then_some(first.longest?)
    }

    /// The head of the column of ratios: "× plain"; empty where there is nothing to compare to.
    pub fn ratio_head(&self) -> String {
        self.base().map_or(String::new(), |base| format!("× {}", base.rung))
    }
}

impl Rung<'_> {
    /// Its longest length, tokens.
    pub fn tokens(&self) -> String {
        self.longest.map_or("none".to_string(), |r| format_tokens(r.length_tokens))
    }

    /// Its longest length over that of `first`.
    pub fn ratio(&self, first: Option<&Run>) -> String {
        match (self.longest, first) {
            (Some(longest), Some(first)) if first.length_tokens > 0 => {
                format!("{:.1}", longest.length_tokens as f64 / first.length_tokens as f64)
            }
            _ => String::new(),
        }
    }

    /// Peak of the fullest rank on its device.
    pub fn peak(&self) -> String {
        self.longest.map_or(String::new(), |r| format_bytes(r.peak_device_bytes))
    }

    /// Room under the budget at the longest length.
    pub fn room(&self) -> String {
        let room = |r: &Run| Some(format_bytes(r.budget_bytes?.saturating_sub(r.peak_device_bytes)));
        self.longest.and_then(room).unwrap_or_default()
    }

    /// First and last loss.
    pub fn loss(&self) -> String {
        let both = |r: &Run| Some(format!("{:.3} → {:.3}", r.loss.first()?, r.loss.last()?));
        self.longest.and_then(both).unwrap_or_default()
    }

    /// Seconds of a step; see [`Run::mean_step_seconds`].
    pub fn step_seconds(&self) -> Option<f64> {
        self.longest?.mean_step_seconds()
    }

    /// Whether its longest length is known: the next one was tried, or the experiment asks for no more.
    pub fn is_finished(&self) -> bool {
        self.longest.is_some() && (self.beyond.is_some() || self.stops_by_design)
    }

    /// What ended it: the next length and what had no room there, the experiment, or what went wrong.
    pub fn ended_by(&self) -> String {
        if let Some(beyond) = self.beyond {
            // "out of memory: 1.63 MiB asked for logits in loss of step 1; …"
            let asked = beyond.reason.split_once(" asked for ").and_then(|(_, rest)| rest.split_once(" in "));
            let what = asked.map_or("memory", |(category, _)| category);
            return format!("{}: no room for {what}", format_tokens(beyond.length_tokens));
        }
        match self.last {
            _ if self.stops_by_design => "the experiment".to_string(),
            Some(last) if last.status != Status::Ok => {
                let reason = last.reason.lines().next().unwrap_or_default();
                format!("{}: {}: {reason}", format_tokens(last.length_tokens), last.status.key())
            }
            Some(last) if last.purpose == "beyond" => {
                format!("{} had room, against the plan", format_tokens(last.length_tokens))
            }
            _ => "not finished".to_string(),
        }
    }
}

/// The finding in a few sentences, for the page's top: what was reached, where room is left, what is missing.
pub fn finding(ladder: &Ladder) -> String {
    let rungs = &ladder.rungs;
    let Some(first) = rungs.iter().find_map(|r| r.longest) else {
        let none = if rungs.is_empty() { "No run is recorded." } else { "No rung ended well: see the attempts below." };
        return none.to_string() + &missing(ladder);
    };
    let budget =
        first.budget_bytes.map_or("Without a budget".to_string(), |b| format!("Under {} a rank", format_bytes(b)));
    let base = ladder.base();
    let mut parts = Vec::new();
    for rung in rungs {
        let Some(longest) = rung.longest else {
            parts.push(format!("{} nothing", rung.name));
            continue;
        };
        let ranks = if longest.ranks > 1 { format!(" on {} ranks", longest.ranks) } else { String::new() };
        let ratio = match base {
            Some(base) if !std::ptr::eq(longest, base) => format!(" ({}×)", rung.ratio(Some(base))),
            _ => String::new(),
        };
        parts.push(format!("{}{ranks} {}{ratio}", rung.name, format_tokens(longest.length_tokens)));
    }
    let designed: Vec<String> = rungs
        .iter()
        .filter(|r| r.stops_by_design && !r.room().is_empty())
        .map(|r| format!("{} with {} of room", r.name, r.room()))
        .collect();
    let stopped = if designed.is_empty() {
        String::new()
    } else {
        format!(" Where the experiment ends a rung, memory is left: {}.", designed.join(", "))
    };
    format!("{budget}, one sequence reaches, in tokens: {}.{stopped}{}", parts.join(", "), missing(ladder))
}

/// What the ladder lacks: rungs that may reach further than what ran, and rungs that weren't begun.
fn missing(ladder: &Ladder) -> String {
    let open: Vec<&str> =
        ladder.rungs.iter().filter(|r| r.longest.is_some() && !r.is_finished()).map(|r| r.name).collect();
    let mut out = String::new();
    if !open.is_empty() {
        out += &format!(" Not finished, so these may reach further: {}.", rows::join(&open));
    }
    if !ladder.not_run.is_empty() {
        let names: Vec<&str> = ladder.not_run.iter().map(String::as_str).collect();
        out += &format!(" Not run: {}.", rows::join(&names));
    }
    out
}
