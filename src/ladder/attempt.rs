//! The attempts of a ladder: which rung is run at which length, and what the plan says of it.

use std::collections::BTreeSet;

use anyhow::Result;

use super::experiment::{Experiment, Rung};
use crate::bad_input;
use crate::memory::category::Category;
use crate::memory::host::HostMemory;
use crate::memory::ledger::Phase;
use crate::plan::{Room, Setting};
use crate::train::world::{RankReport, plan_for};
use crate::units::{format_bytes, format_tokens};

/// What an attempt is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A shorter length, for the memory curve.
    Curve,
    /// The longest length that fits, or at which the rung stops.
    Longest,
    /// The next grid point, which must not fit.
    Beyond,
}

impl Purpose {
    /// The name in the `purpose` column.
    pub fn key(self) -> &'static str {
        match self {
            Purpose::Curve => "curve",
            Purpose::Longest => "longest",
            Purpose::Beyond => "beyond",
        }
    }
}

/// One rung at one length.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub rung: Rung,
    pub purpose: Purpose,
    /// Tokens.
    pub length: u64,
    pub steps: u32,
    /// The dry device's word, without a budget.
    pub planned: RankReport,
    /// Why it is not started.
    pub refusal: Option<String>,
    /// Layers of the model.
    layers: usize,
}

/// What is planned for a rung: on the experiment's device, within its budget and, where the
/// plan chooses, within what this machine's memory gives.
fn setting<'a>(e: &'a Experiment, rung: &Rung) -> Setting<'a> {
    let host = if rung.auto.any() { HostMemory::here().map(|m| m.usable()) } else { None };
    Setting {
        profile: e.device.profile(),
        model: &e.model,
        toggles: rung.toggles.clone(),
        auto: rung.auto,
        room: Room { device: e.budget, host },
    }
}

impl Attempt {
    fn new(e: &Experiment, rung: &Rung, purpose: Purpose, length: u64) -> Result<Attempt> {
        let plan = setting(e, rung).plan(length)?;
        let steps = if purpose == Purpose::Longest { e.steps } else { e.curve_steps };
        let rung = Rung { toggles: plan.toggles, ..rung.clone() };
        Ok(Attempt {
            rung,
            purpose,
            length,
            steps,
            planned: plan.rank,
            refusal: None,
            layers: e.model.num_hidden_layers,
        })
    }

    /// The shortest length of a rung, which is refused if not even that fits. (It may be the
    /// text that is too short: that is said where it is read.)
    fn refused(e: &Experiment, rung: &Rung, budget: u64) -> Result<Attempt> {
        let mut attempt = Attempt::new(e, rung, Purpose::Longest, rung.grid)?;
        let (toggles, length) = (&attempt.rung.toggles, attempt.length as usize);
        let (_, refusal) = plan_for(e.device.profile(), &e.model, toggles, Some(budget), length);
        let load = attempt.planned.timeline.iter().filter(|s| s.mark.phase == Phase::Load);
        let reason = match load.map(|s| s.device.total()).max() {
            Some(load) if load > budget => format!(
                "a budget of {} is too small for rung `{}`: weights, gradients and moments alone take {} a rank\n",
                format_bytes(budget),
                rung.name,
                format_bytes(load)
            ),
            _ => String::new(),
        };
        attempt.refusal = refusal.err().map(|error| reason + &error.to_string());
        Ok(attempt)
    }

    /// The plan in a line.
    pub fn plan_line(&self, budget: Option<u64>) -> String {
        let device = &self.planned.device;
        let bytes = |c: &Category| device.bytes.of(*c);
        let mut largest = Category::ALL.to_vec();
        largest.sort_by_key(|c| std::cmp::Reverse(bytes(c)));
        let largest: Vec<String> =
            largest.iter().take(3).map(|c| format!("{} {}", c.label(), format_bytes(bytes(c)))).collect();
        let of = budget.map_or(String::new(), |b| format!(" of {}", format_bytes(b)));
        let chosen = match self.rung.auto.any() {
            true => format!("; chosen: {}", self.rung.toggles.describe_keep(self.layers)),
            false => String::new(),
        };
        format!(
            "{}: {}{of} a rank at the peak, in {} ({}); {} in host memory{chosen}",
            describe(self),
            format_bytes(device.bytes.total()),
            device.mark.phase.key(),
            largest.join(", "),
            format_bytes(self.planned.host.bytes.total())
        )
    }

    /// FLOPs that the attempt takes by plan, over all ranks and steps.
    pub fn flops(&self) -> u64 {
        if self.refusal.is_some() {
            return 0;
        }
        let steps = if self.purpose == Purpose::Beyond { 1 } else { u128::from(self.steps) };
        let all = self.planned.counts.flops() * self.rung.toggles.ranks as u128 * steps;
        u64::try_from(all).unwrap_or(u64::MAX)
    }
}

/// Shorter lengths for the curve where the rung names none: quarters of the longest.
fn quarters(longest: u64, grid: u64) -> Vec<u64> {
    (1..4).map(|i| longest * i / 4 / grid * grid).filter(|l| *l > 0).collect()
}

/// All attempts of an experiment, in the order in which they run. `text_tokens`: no
/// longer sequence can come from the text, so none is searched.
pub fn attempts(e: &Experiment, text_tokens: u64) -> Result<Vec<Attempt>> {
    let mut all = Vec::new();
    for rung in &e.rungs {
        let Some(budget) = e.budget else {
            let Some(stop_at) = rung.stop_at else {
                bad_input!("rung `{}` has no end: give a budget, or stop_at", rung.name)
            };
            add(&mut all, e, rung, stop_at, None)?;
            continue;
        };
        let most = rung.stop_at.unwrap_or(u64::MAX).min(text_tokens.next_multiple_of(rung.grid));
        match setting(e, rung).longest(rung.grid, most)? {
            Some(length) => {
                let beyond = (Some(length) != rung.stop_at).then_some(length + rung.grid);
                add(&mut all, e, rung, length, beyond)?;
            }
            None => all.push(Attempt::refused(e, rung, budget)?),
        }
    }
    none_starts(&all)?;
    Ok(all)
}

/// Where not one attempt can start, that is the answer.
pub(super) fn none_starts(attempts: &[Attempt]) -> Result<()> {
    match attempts.first().and_then(|a| a.refusal.as_ref()) {
        Some(reason) if attempts.iter().all(|a| a.refusal.is_some()) => bad_input!("{reason}"),
        _ => Ok(()),
    }
}

fn add(all: &mut Vec<Attempt>, e: &Experiment, rung: &Rung, length: u64, beyond: Option<u64>) -> Result<()> {
    let curve = if rung.curve.is_empty() { quarters(length, rung.grid) } else { rung.curve.clone() };
    let curve: BTreeSet<u64> = curve.into_iter().filter(|l| *l < length).collect();
    for shorter in curve {
        all.push(Attempt::new(e, rung, Purpose::Curve, shorter)?);
    }
    all.push(Attempt::new(e, rung, Purpose::Longest, length)?);
    if let Some(beyond) = beyond {
        all.push(Attempt::new(e, rung, Purpose::Beyond, beyond)?);
    }
    Ok(())
}

/// A line about an attempt, for a progress bar or a log.
pub fn describe(a: &Attempt) -> String {
    format!("{} at {} tokens", a.rung.name, format_tokens(a.length))
}
