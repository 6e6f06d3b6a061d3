//! Short runs that leave everything behind: losses, gradients, weights.

use std::sync::atomic::AtomicBool;

use anyhow::{Result, ensure};

use crate::mix::mix;
use crate::model::config::ModelConfig;
use crate::model::layout::Slot;
use crate::parallel::shard::WeightSource;
use crate::train::gathered::Gathered;
pub use crate::train::gathered::Tensors;
use crate::train::step::Optimizer;
use crate::train::toggles::Toggles;
use crate::train::world::{Job, Outcome, Row, run_with};

/// Repeatable weights that need no file, others for each seed: uniform within ± `scale`,
/// norms within 1 ± 0.3.
#[derive(Debug, Clone, Copy)]
pub struct Uniform {
    pub seed: u64,
    pub scale: f32,
}

impl WeightSource for Uniform {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()> {
        let key = slot.name.bytes().fold(mix(self.seed), |key, byte| mix(key ^ u64::from(byte)));
        for (i, value) in out.iter_mut().enumerate() {
            let bits = mix(key ^ (first + i) as u64) >> 40;
            let uniform = bits as f32 / (1 << 23) as f32 - 1.0;
            *value = if slot.rows == 1 { 1.0 + 0.3 * uniform } else { self.scale * uniform };
        }
        Ok(())
    }
}

/// A run's outcome, its gradients (of the last step) and its weights.
pub struct Left {
    pub outcome: Outcome,
    pub gradients: Tensors,
    pub weights: Tensors,
}

/// Trains a step on each of `rows` on CPU ranks, learning rate 1e-3 at first, and reads everything out.
pub fn train(
    config: &ModelConfig,
    toggles: &Toggles,
    source: &(dyn WeightSource + Sync),
    rows: &[Row],
) -> Result<Left> {
    let optimizer = Optimizer { learning_rate: 1e-3, steps: rows.len() as u32, max_gradient_norm: 1.0, seed: 7 };
    let job = Job { config, toggles, optimizer, budget: None, rows, source };
    let (gradients, weights) = (Gathered::default(), Gathered::default());
    let mut outcome = run_with(&job, &AtomicBool::new(false), &|_, _| {}, &|trainer| {
        gradients.take(trainer, true)?;
        weights.take(trainer, false)
    });
    if let Some(error) = outcome.error.take() {
        return Err(error);
    }
    let (gradients, weights) = (gradients.into_inner(), weights.into_inner());
    Ok(Left { outcome, gradients, weights })
}

/// ‖a − b‖ / ‖b‖, in f64.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let norm: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    match (a.len() == b.len(), difference == 0.0) {
        (false, _) => f64::INFINITY,
        (true, true) => 0.0,
        (true, false) => (difference / norm).sqrt(),
    }
}

/// The tensor that is farthest off, and by how much; one that is missing is infinitely far.
pub fn farthest(ours: &Tensors, theirs: &Tensors) -> (String, f64) {
    let off = |name: &String, theirs: &Vec<f32>| ours.get(name).map_or(f64::INFINITY, |ours| distance(ours, theirs));
    let all = theirs.iter().map(|(name, theirs)| (name.clone(), off(name, theirs)));
    let missing = ours.keys().filter(|name| !theirs.contains_key(*name)).map(|name| (name.clone(), f64::INFINITY));
    all.chain(missing).fold((String::new(), 0.0), |a, b| if b.1 > a.1 || b.1.is_nan() { b } else { a })
}

/// How many values of two runs differ in any bit: losses, norms, losses by position,
/// gradients, weights.
pub fn differing_bits(a: &Left, b: &Left) -> Result<u64> {
    ensure!(a.outcome.steps.len() == b.outcome.steps.len(), "the runs have different numbers of steps");
    let mut differing = 0;
    for (x, y) in a.outcome.steps.iter().zip(&b.outcome.steps) {
        differing += u64::from(x.loss.to_bits() != y.loss.to_bits());
        differing += u64::from(x.gradient_norm.to_bits() != y.gradient_norm.to_bits());
        differing += differing_values(&x.losses, &y.losses);
    }
    for (a, b) in [(&a.gradients, &b.gradients), (&a.weights, &b.weights)] {
        ensure!(a.len() == b.len(), "the runs have different tensors");
        for (name, values) in a {
            differing += b.get(name).map_or(values.len() as u64, |other| differing_values(values, other));
        }
    }
    Ok(differing)
}

/// How many values differ in any bit; each that one side lacks does.
pub fn differing_values(a: &[f32], b: &[f32]) -> u64 {
    let differing = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    (differing + a.len().abs_diff(b.len())) as u64
}

/// The largest relative difference of the steps' losses; infinite where the valid
/// targets differ.
pub fn loss_difference(a: &Left, b: &Left) -> f64 {
    let pairs = a.outcome.steps.iter().zip(&b.outcome.steps);
    let differences = pairs.map(|(x, y)| match (x.valid_targets == y.valid_targets, x.loss == y.loss) {
        (false, _) => f64::INFINITY,
        (true, true) => 0.0,
        (true, false) => (x.loss / y.loss - 1.0).abs(),
    });
    differences.fold(0.0, worse)
}

/// The larger, where no number is the largest of all.
pub fn worse(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}
