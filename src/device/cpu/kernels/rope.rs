//! The norm of each head (Qwen3's q_norm and k_norm), then the rotary embedding.

use super::norm::{backward_row, inverse_rms};
use super::{BLOCK, Rows, RowsMut, each, sum_blocks};

/// cos, sin [tokens, head_dim / 2] of position × inverse frequency, times
/// `attention_factor`. Phases in f64: an f32 product at position 1,048,575 is off by
/// hundredths of a turn.
pub fn rope_table(inv_freq: &[f64], positions: &[u32], attention_factor: f64, mut cos: RowsMut, mut sin: RowsMut) {
    assert!(cos.rows == positions.len() && cos.cols == inv_freq.len(), "rope_table: shapes");
    assert!(sin.rows == positions.len() && sin.cols == inv_freq.len(), "rope_table: shapes");
    for (i, position) in positions.iter().enumerate() {
        for (j, frequency) in inv_freq.iter().enumerate() {
            let (s, c) = (f64::from(*position) * frequency).sin_cos();
            cos.row_mut(i)[j] = (c * attention_factor) as f32;
            sin.row_mut(i)[j] = (s * attention_factor) as f32;
        }
    }
}

/// `x` [tokens, heads · head_dim] in place: head norm (none without a weight), then
/// out = x·cos + rotate_half(x)·sin with halves of a head, as transformers has it.
pub fn head_norm_rope(x: RowsMut, weight: Option<&[f32]>, eps: f32, cos: Rows, sin: Rows, head_dim: usize) {
    assert!(x.cols.is_multiple_of(head_dim) && cos.rows == x.rows && cos.cols * 2 == head_dim, "rope: shapes");
    let half = head_dim / 2;
    each(x.blocks(BLOCK, 0), |(start, mut x)| {
        for i in 0..x.rows {
            let (cos, sin) = (cos.row(start + i), sin.row(start + i));
            for head in x.row_mut(i).chunks_exact_mut(head_dim) {
                if let Some(weight) = weight {
                    let r = inverse_rms(head, eps);
                    head.iter_mut().zip(weight).for_each(|(x, w)| *x = *x * r * w);
                }
                let (a, b) = head.split_at_mut(half);
                for j in 0..half {
                    (a[j], b[j]) = (a[j] * cos[j] - b[j] * sin[j], b[j] * cos[j] + a[j] * sin[j]);
                }
            }
        }
    });
}

/// `x_raw`: the input as it was; `dy`: gradient of the output, turned in place into
/// that of the input; d_weight += gradient of the head norm's weight.
#[allow(clippy::too_many_arguments)] // the operands of the operation
pub fn head_norm_rope_backward(
    x_raw: Rows,
    weight: Option<&[f32]>,
    eps: f32,
    cos: Rows,
    sin: Rows,
    head_dim: usize,
    mut dy: RowsMut,
    d_weight: Option<&mut [f32]>,
) {
    assert!(dy.rows == x_raw.rows && dy.cols == x_raw.cols && cos.cols * 2 == head_dim, "rope: shapes");
    let half = head_dim / 2;
    // Back through the rotation: its transpose.
    each(dy.reborrow().blocks(BLOCK, 0), |(start, mut dy)| {
        for i in 0..dy.rows {
            let (cos, sin) = (cos.row(start + i), sin.row(start + i));
            for head in dy.row_mut(i).chunks_exact_mut(head_dim) {
                let (a, b) = head.split_at_mut(half);
                for j in 0..half {
                    (a[j], b[j]) = (a[j] * cos[j] + b[j] * sin[j], b[j] * cos[j] - a[j] * sin[j]);
                }
            }
        }
    });
    let Some(weight) = weight else { return };
    if let Some(d_weight) = d_weight {
        let dy = Rows::new(dy.data, dy.rows, dy.cols, dy.stride);
        sum_blocks(x_raw.rows, d_weight, |rows, sum| {
            for i in rows {
                for (x, dy) in x_raw.row(i).chunks_exact(head_dim).zip(dy.row(i).chunks_exact(head_dim)) {
                    let r = inverse_rms(x, eps);
                    sum.iter_mut().zip(x.iter().zip(dy)).for_each(|(s, (x, dy))| *s += dy * (r * x));
                }
            }
        });
    }
    each(dy.blocks(BLOCK, 0), |(start, mut dy)| {
        let mut dx = vec![0.0; head_dim];
        for i in 0..dy.rows {
            let x = x_raw.row(start + i);
            for (x, dy) in x.chunks_exact(head_dim).zip(dy.row_mut(i).chunks_exact_mut(head_dim)) {
                backward_row(x, |j| weight[j], inverse_rms(x, eps), |j| dy[j], |j, d| dx[j] = d);
                dy.copy_from_slice(&dx);
            }
        }
    });
}
