//! Losses by position, in bands of equal length: for figures and tables.

use std::ops::Range;

/// Bands of a figure of a training step.
pub const BANDS: usize = 16;

/// Mean loss of a part of the sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// First position, tokens.
    pub start: usize,
    /// Position after the last, tokens.
    pub end: usize,
    /// Positions whose target counts.
    pub targets: usize,
    /// Mean over them, nats; none without targets.
    pub loss: Option<f64>,
}

/// Mean of the losses by position (0 where the target doesn't count) over a part of the
/// sequence, nats; none without targets. `counts`: whether the target of a position does.
pub fn mean(losses: &[f32], part: Range<usize>, counts: impl Fn(usize) -> bool) -> Option<f64> {
    let targets = part.clone().filter(|i| counts(*i)).count();
    let sum: f64 = losses[part].iter().map(|l| f64::from(*l)).sum();
    (targets > 0).then(|| sum / targets as f64)
}

/// The bands of a sequence, `most` at most.
pub fn bands(losses: &[f32], most: usize, counts: impl Fn(usize) -> bool) -> Vec<Band> {
    let (length, bands) = (losses.len(), most.min(losses.len()));
    let band = |b: usize| {
        let (start, end) = (length * b / bands, length * (b + 1) / bands);
        let targets = (start..end).filter(|i| counts(*i)).count();
        Band { start, end, targets, loss: mean(losses, start..end, &counts) }
    };
    (0..bands).map(band).collect()
}
