//! Cross entropy over rows of logits.

use super::simd::{dispatch, exp};
use super::{BLOCK, Rows, RowsMut, each};
use crate::device::IGNORED;

dispatch! {
    /// Natural logarithm of Σ e^z.
    fn log_sum_exp(z: &[f32]) -> f32 {
        let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        max + super::simd::sum(z.iter().map(|z| exp(z - max))).ln()
    }
}

dispatch! {
    /// out ← e^(z − lse) · scale.
    fn scaled_softmax(z: &mut [f32], lse: f32, scale: f32) {
        for z in z {
            *z = exp(*z - lse) * scale;
        }
    }
}

/// logits [rows, vocabulary] in place → gradient times `scale`; losses [rows]: the loss
/// of each row, 0 where the target is ignored.
pub fn cross_entropy_in_place(logits: RowsMut, targets: &[u32], scale: f32, losses: &mut [f32]) {
    assert!(logits.rows == targets.len() && targets.len() == losses.len(), "cross entropy: rows differ");
    let blocks: Vec<_> = logits.blocks(BLOCK, 0).into_iter().zip(losses.chunks_mut(BLOCK)).collect();
    each(blocks, |((start, mut logits), losses)| {
        for (i, loss) in losses.iter_mut().enumerate() {
            let (z, target) = (logits.row_mut(i), targets[start + i]);
            if target == IGNORED {
                *loss = 0.0;
                z.fill(0.0);
                continue;
            }
            let lse = log_sum_exp(z);
            *loss = lse - z[target as usize];
            scaled_softmax(z, lse, scale);
            z[target as usize] -= scale;
        }
    });
}

/// out ← z − log Σ e^z of each row.
pub fn log_softmax(logits: Rows, out: RowsMut) {
    assert!(logits.rows == out.rows && logits.cols == out.cols, "log_softmax: shapes differ");
    each(out.blocks(BLOCK, 0), |(start, mut out)| {
        for i in 0..out.rows {
            let z = logits.row(start + i);
            let lse = log_sum_exp(z);
            out.row_mut(i).iter_mut().zip(z).for_each(|(o, z)| *o = z - lse);
        }
    });
}

/// The losses and the gradient of the logits, times `scale`, from log-probabilities.
pub fn nll_and_gradient(log_probabilities: Rows, targets: &[u32], scale: f32, losses: &mut [f32], d_logits: RowsMut) {
    assert!(log_probabilities.rows == d_logits.rows && log_probabilities.cols == d_logits.cols, "nll: shapes differ");
    assert!(d_logits.rows == targets.len() && targets.len() == losses.len(), "nll: rows differ");
    let blocks: Vec<_> = d_logits.blocks(BLOCK, 0).into_iter().zip(losses.chunks_mut(BLOCK)).collect();
    each(blocks, |((start, mut d_logits), losses)| {
        for (i, loss) in losses.iter_mut().enumerate() {
            let (d, target) = (d_logits.row_mut(i), targets[start + i]);
            if target == IGNORED {
                *loss = 0.0;
                d.fill(0.0);
                continue;
            }
            d.copy_from_slice(log_probabilities.row(start + i));
            *loss = -d[target as usize];
            scaled_softmax(d, 0.0, scale);
            d[target as usize] -= scale;
        }
    });
}
