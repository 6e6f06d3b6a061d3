//! Losses by position, in bands of equal length: for figures and tables.

use serde::Serialize;

/// Bands of a figure or a table.
pub const BANDS: usize = 16;

/// Mean loss of a part of the sequence.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

/// Bands of the losses by position (0 where the target doesn't count), at most [`BANDS`].
/// `counts`: whether the target of a position does.
pub fn bands(losses: &[f32], counts: impl Fn(usize) -> bool) -> Vec<Band> {
    let (length, bands) = (losses.len(), BANDS.min(losses.len()));
    let band = |b: usize| {
        let (start, end) = (length * b / bands, length * (b + 1) / bands);
        let targets = (start..end).filter(|i| counts(*i)).count();
        let sum: f64 = losses[start..end].iter().map(|l| f64::from(*l)).sum();
        Band { start, end, targets, loss: (targets > 0).then(|| sum / targets as f64) }
    };
    (0..bands).map(band).collect()
}
