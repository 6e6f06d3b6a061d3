//! The plan: dry runs of the very step, and the search for the longest length that fits.

use crate::model::config::ModelConfig;
use crate::train::toggles::Toggles;
use crate::train::world::plan;

/// Whether the plan's peak is within the budget.
fn fits(config: &ModelConfig, toggles: &Toggles, budget: u64, length: u64) -> bool {
    plan(config, toggles, Some(budget), length as usize).1.is_ok()
}

/// The longest multiple of `grid` that fits into `budget` bytes a rank, up to `most`
/// tokens; none if not even one grid point does. Memory never falls as a sequence grows.
pub fn longest(config: &ModelConfig, toggles: &Toggles, budget: u64, grid: u64, most: u64) -> Option<u64> {
    let most = most / grid;
    let fits = |points: u64| fits(config, toggles, budget, points * grid);
    if most == 0 || !fits(1) {
        return None;
    }
    // `low` fits; `high` doesn't, or is beyond the end.
    let (mut low, mut high) = (1, 2);
    while high <= most && fits(high) {
        (low, high) = (high, high * 2);
    }
    high = high.min(most + 1);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(low * grid)
}
