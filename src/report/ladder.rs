//! The ladder as rows: what each rung reached and what it took.

use crate::record::Records;
use crate::record::run::{Run, Status};
use crate::units::{format_bytes, format_tokens};

/// One rung's result.
pub struct Rung<'a> {
    pub name: &'a str,
    /// What it adds, as the experiment file says.
    pub adds: String,
    /// The longest run that ended well.
    pub longest: Option<&'a Run>,
    /// The next length, which did not fit.
    pub beyond: Option<&'a Run>,
}

/// What a rung adds, from the experiment file in its row.
fn adds(run: &Run) -> Option<String> {
    let file: toml::Table = run.experiment_toml.parse().ok()?;
    let rung =
        file.get("rung")?.as_array()?.iter().find(|r| r.get("name").and_then(|n| n.as_str()) == Some(&run.rung))?;
    Some(rung.get("adds")?.as_str()?.to_string())
}

/// The rungs in the order in which they ran.
pub fn rungs(records: &Records) -> Vec<Rung<'_>> {
    let mut rungs: Vec<Rung> = Vec::new();
    for run in &records.runs {
        let position = rungs.iter().position(|r| r.name == run.rung).unwrap_or_else(|| {
            rungs.push(Rung { name: &run.rung, adds: adds(run).unwrap_or_default(), longest: None, beyond: None });
            rungs.len() - 1
        });
        let rung = &mut rungs[position];
        match run.status {
            Status::Ok if rung.longest.is_none_or(|l| l.length_tokens <= run.length_tokens) => rung.longest = Some(run),
            Status::OutOfMemory => rung.beyond = Some(run),
            _ => {}
        }
    }
    rungs
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

    /// Seconds of a step: the mean of those after the first, or the first alone.
    pub fn step_seconds(&self) -> Option<f64> {
        let seconds = &self.longest?.step_seconds;
        let counted = if seconds.len() > 1 { &seconds[1..] } else { &seconds[..] };
        (!counted.is_empty()).then(|| counted.iter().sum::<f64>() / counted.len() as f64)
    }

    /// What ended it: the next length and what had no room there, or the experiment.
    pub fn ended_by(&self) -> String {
        match (self.beyond, self.longest) {
            (Some(beyond), _) => {
                // "out of memory: 1.63 MiB asked for logits in loss of step 1; …"
                let asked = beyond.reason.split_once(" asked for ").and_then(|(_, rest)| rest.split_once(" in "));
                let what = asked.map_or("memory", |(category, _)| category);
                format!("{}: no room for {what}", format_tokens(beyond.length_tokens))
            }
            (None, Some(_)) => "the experiment".to_string(),
            (None, None) => String::new(),
        }
    }
}

/// The finding in a sentence or two, for the page's top.
pub fn finding(rungs: &[Rung]) -> String {
    let first = rungs.iter().find_map(|r| r.longest);
    let Some(first) = first else { return "No rung ended well: see the attempts below.".to_string() };
    let budget =
        first.budget_bytes.map_or("Without a budget".to_string(), |b| format!("Under {} a rank", format_bytes(b)));
    let mut parts = Vec::new();
    for rung in rungs {
        let Some(longest) = rung.longest else {
            parts.push(format!("{} nothing", rung.name));
            continue;
        };
        let ranks = if longest.ranks > 1 { format!(" on {} ranks", longest.ranks) } else { String::new() };
        let ratio =
            if std::ptr::eq(longest, first) { String::new() } else { format!(" ({}×)", rung.ratio(Some(first))) };
        parts.push(format!("{}{ranks} {}{ratio}", rung.name, format_tokens(longest.length_tokens)));
    }
    let designed: Vec<String> = rungs
        .iter()
        .filter(|r| r.beyond.is_none() && r.longest.is_some_and(|l| l.budget_bytes.is_some()))
        .map(|r| format!("{} with {} of room", r.name, r.room()))
        .collect();
    let stopped = if designed.is_empty() {
        String::new()
    } else {
        format!(" Where the experiment ends a rung, memory is left: {}.", designed.join(", "))
    };
    format!("{budget}, one sequence reaches, in tokens: {}.{stopped}", parts.join(", "))
}
