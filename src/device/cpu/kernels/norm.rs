//! RMSNorm: y = x / √(mean(x²) + ε) · weight.

use super::simd::dot;
use super::{BLOCK, Rows, RowsMut, each, sum_blocks};

/// 1 / √(mean(x²) + ε).
#[inline(always)]
pub(super) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// dx of one row of a norm with weights: r·(w·dy − x̂·mean(w·dy·x̂)), x̂ = r·x. Calls
/// `out(i, dx)` for each element.
#[inline(always)]
pub(super) fn backward_row(
    x: &[f32],
    weight: impl Fn(usize) -> f32,
    r: f32,
    dy: impl Fn(usize) -> f32,
    mut out: impl FnMut(usize, f32),
) {
    let n = x.len();
    let mean = super::simd::sum((0..n).map(|i| weight(i) * dy(i) * (r * x[i]))) / n as f32;
    for (i, x) in x.iter().enumerate() {
        out(i, r * (weight(i) * dy(i) - r * x * mean));
    }
}

/// `x`, `out`: [tokens, hidden]; `weight`: [hidden].
pub fn rms_norm(x: Rows, weight: &[f32], eps: f32, out: RowsMut) {
    assert!(x.rows == out.rows && x.cols == out.cols && x.cols == weight.len(), "rms_norm: shapes differ");
    each(out.blocks(BLOCK, 0), |(start, mut out)| {
        for i in 0..out.rows {
            let x = x.row(start + i);
            let r = inverse_rms(x, eps);
            for ((o, x), w) in out.row_mut(i).iter_mut().zip(x).zip(weight) {
                *o = x * r * w;
            }
        }
    });
}

/// dx += gradient of `x`; d_weight += gradient of the weight.
pub fn rms_norm_backward(x: Rows, weight: &[f32], eps: f32, dy: Rows, dx: RowsMut, d_weight: &mut [f32]) {
    assert!(x.rows == dx.rows && x.cols == dx.cols && dy.rows == x.rows && dy.cols == x.cols, "rms_norm: shapes");
    assert!(weight.len() == x.cols && d_weight.len() == x.cols, "rms_norm: the weight is [hidden]");
    each(dx.blocks(BLOCK, 0), |(start, mut dx)| {
        for i in 0..dx.rows {
            let (x, dy, dx) = (x.row(start + i), dy.row(start + i), dx.row_mut(i));
            backward_row(x, |j| weight[j], inverse_rms(x, eps), |j| dy[j], |j, d| dx[j] += d);
        }
    });
    sum_blocks(x.rows, d_weight, |rows, sum| {
        for i in rows {
            let (x, dy) = (x.row(i), dy.row(i));
            let r = inverse_rms(x, eps);
            sum.iter_mut().zip(x.iter().zip(dy)).for_each(|(s, (x, dy))| *s += dy * (r * x));
        }
    });
}
