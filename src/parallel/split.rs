//! Which positions of a sequence each rank holds.

use std::ops::Range;

use anyhow::{Result, ensure};

use crate::device::IGNORED;

/// How attention is split over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// One rank, or the whole sequence on each.
    Whole,
    /// Keys and values travel; zigzag halves.
    Ring,
    /// Heads are exchanged; contiguous parts.
    Ulysses,
}

/// One rank's part of a row: its tokens, their positions and targets. Of a [`shape`] the
/// three lists are empty: enough for the dry device, which reads no values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Number of tokens, padding included.
    pub tokens: usize,
    pub ids: Vec<u32>,
    /// Global positions: rope's, and the key of figures by position.
    pub positions: Vec<u32>,
    /// The token that follows each; [`IGNORED`] counts for nothing.
    pub targets: Vec<u32>,
    /// Valid targets of the whole row: the loss is a mean over them.
    pub valid_targets: u64,
}

/// The length with the padding that the split needs.
pub fn padded(length: usize, scheme: Scheme, ranks: usize) -> usize {
    match scheme {
        Scheme::Whole => length,
        Scheme::Ring => length.next_multiple_of(2 * ranks),
        Scheme::Ulysses => length.next_multiple_of(ranks),
    }
}

/// The positions that `rank` holds, in order, of a padded length.
///
/// Ring: rank r holds chunks r and 2P−1−r of 2P, so that causal work is equal.
pub fn ranges(padded: usize, scheme: Scheme, ranks: usize, rank: usize) -> Vec<Range<usize>> {
    match scheme {
        Scheme::Whole => std::iter::once(0..padded).collect(),
        Scheme::Ring => {
            let chunk = padded / (2 * ranks);
            let tail = 2 * ranks - 1 - rank;
            vec![rank * chunk..(rank + 1) * chunk, tail * chunk..(tail + 1) * chunk]
        }
        Scheme::Ulysses => {
            let chunk = padded / ranks;
            std::iter::once(rank * chunk..(rank + 1) * chunk).collect()
        }
    }
}

/// What a rank's part of a row of `length` tokens measures, without its content. The parts
/// of all ranks are of one size.
pub fn shape(length: usize, scheme: Scheme, ranks: usize) -> Part {
    let padded = padded(length, scheme, ranks);
    let tokens = if scheme == Scheme::Whole { padded } else { padded / ranks };
    let valid_targets = length.saturating_sub(1) as u64;
    Part { tokens, ids: Vec::new(), positions: Vec::new(), targets: Vec::new(), valid_targets }
}

/// Splits a row. `labels`: the row's own labels (none: its ids), aligned with `ids`
/// as transformers' are. They are shifted here, once, before anything is split: the
/// target of position i is label i + 1, so that no part loses its last target.
pub fn split(ids: &[u32], labels: Option<&[u32]>, scheme: Scheme, ranks: usize, rank: usize) -> Result<Part> {
    let labels = labels.unwrap_or(ids);
    ensure!(!ids.is_empty(), "a row has no tokens");
    ensure!(ids.len() == labels.len(), "{} labels for {} tokens", labels.len(), ids.len());
    ensure!(ids.len() < u32::MAX as usize, "{} tokens: positions are 32-bit", ids.len());
    let padded = padded(ids.len(), scheme, ranks);
    let target = |i: usize| labels.get(i + 1).copied().unwrap_or(IGNORED);
    let valid_targets = (0..ids.len()).filter(|i| target(*i) != IGNORED).count() as u64;
    let mut part = Part { valid_targets, ..shape(ids.len(), scheme, ranks) };
    for i in ranges(padded, scheme, ranks, rank).into_iter().flatten() {
        part.ids.push(ids.get(i).copied().unwrap_or(0));
        part.positions.push(i as u32);
        part.targets.push(target(i));
    }
    Ok(part)
}

/// A value for each position of a row of `length` tokens, in the order of positions and
/// without the padding, from those that each rank holds for its part.
pub fn in_order<V: AsRef<[f32]>>(ranks: &[V], length: usize, scheme: Scheme) -> Vec<f32> {
    let padded = padded(length, scheme, ranks.len());
    let mut all = vec![0.0; padded];
    for (rank, own) in ranks.iter().enumerate() {
        let positions = ranges(padded, scheme, ranks.len(), rank).into_iter().flatten();
        positions.zip(own.as_ref()).for_each(|(i, value)| all[i] = *value);
    }
    all.truncate(length);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// failures.md 3: shifting after the split loses a target at each end, or takes a wrong neighbour.
    #[test]
    fn every_position_and_target_is_held_once_for_every_world() {
        let ids: Vec<u32> = (100..133).collect();
        for scheme in [Scheme::Ring, Scheme::Ulysses] {
            for ranks in [1, 2, 4, 8] {
                let parts: Vec<Part> = (0..ranks).map(|r| split(&ids, None, scheme, ranks, r).unwrap()).collect();
                let mut seen: Vec<(u32, u32, u32)> = parts
                    .iter()
                    .flat_map(|p| (0..p.ids.len()).map(|i| (p.positions[i], p.ids[i], p.targets[i])))
                    .collect();
                seen.sort();
                assert_eq!(seen.len(), padded(ids.len(), scheme, ranks));
                for (i, (position, id, target)) in seen.into_iter().enumerate() {
                    assert_eq!(position, i as u32);
                    assert_eq!(id, ids.get(i).copied().unwrap_or(0));
                    assert_eq!(target, ids.get(i + 1).copied().unwrap_or(IGNORED));
                }
                assert!(parts.iter().all(|p| p.valid_targets == 32 && p.ids.len() == parts[0].ids.len()));
            }
        }
    }

    /// failures.md 5: position 0 is never a target, whatever its label.
    #[test]
    fn the_first_label_counts_for_nothing() {
        let part = split(&[5, 6, 7], Some(&[5, IGNORED, 7]), Scheme::Whole, 1, 0).unwrap();
        assert_eq!(part.targets, [IGNORED, 7, IGNORED]);
        assert_eq!(part.valid_targets, 1);
    }
}
