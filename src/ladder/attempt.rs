//! The attempts of a ladder: which rung is run at which length, and what the plan says of it.

use std::collections::BTreeSet;

use anyhow::Result;

use super::experiment::{Experiment, Rung};
use crate::bad_input;
use crate::memory::ledger::Phase;
use crate::plan::longest;
use crate::train::world::{RankReport, plan};
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
}

impl Attempt {
    fn new(e: &Experiment, rung: &Rung, purpose: Purpose, length: u64) -> Result<Attempt> {
        let (planned, result) = plan(&e.model, &rung.toggles, None, length as usize);
        result?;
        let steps = if purpose == Purpose::Longest { e.steps } else { e.curve_steps };
        Ok(Attempt { rung: rung.clone(), purpose, length, steps, planned })
    }

    /// FLOPs that the attempt takes by plan, over all ranks and steps.
    pub fn flops(&self) -> u64 {
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
        match longest(&e.model, &rung.toggles, budget, rung.grid, most) {
            Some(length) => {
                let beyond = (Some(length) != rung.stop_at).then_some(length + rung.grid);
                add(&mut all, e, rung, length, beyond)?;
            }
            None => {
                has_room_for_weights(e, rung, budget)?;
                all.push(Attempt::new(e, rung, Purpose::Beyond, rung.grid)?);
            }
        }
    }
    Ok(all)
}

/// Refuses a budget that is used up before the first token.
fn has_room_for_weights(e: &Experiment, rung: &Rung, budget: u64) -> Result<()> {
    let (planned, _) = plan(&e.model, &rung.toggles, None, rung.grid as usize);
    let load = planned.timeline.iter().filter(|s| s.mark.phase == Phase::Load).map(|s| s.device.total()).max();
    match load {
        Some(load) if load > budget => bad_input!(
            "a budget of {} is too small for rung `{}`: weights, gradients and moments alone take {} a rank",
            format_bytes(budget),
            rung.name,
            format_bytes(load)
        ),
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
