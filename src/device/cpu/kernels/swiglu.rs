//! SwiGLU: silu(gate) · up.

use super::simd::{dispatch, exp};
use super::{BLOCK, Rows, RowsMut, each};

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

dispatch! {
    fn forward_row(gate: &[f32], up: &[f32], out: &mut [f32]) {
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            *o = g * sigmoid(*g) * u;
        }
    }
}

dispatch! {
    fn backward_row(gate: &mut [f32], up: &mut [f32], d_out: &[f32]) {
        for ((g, u), d) in gate.iter_mut().zip(up).zip(d_out) {
            let s = sigmoid(*g);
            let silu = *g * s;
            let d_gate = d * *u * (s + silu * (1.0 - s));
            *u = d * silu;
            *g = d_gate;
        }
    }
}

/// out ← silu(gate) · up, all [tokens, intermediate].
pub fn swiglu(gate: Rows, up: Rows, out: RowsMut) {
    assert!(gate.rows == out.rows && gate.cols == out.cols && up.rows == out.rows && up.cols == out.cols, "swiglu");
    each(out.blocks(BLOCK, 0), |(start, mut out)| {
        for i in 0..out.rows {
            forward_row(gate.row(start + i), up.row(start + i), out.row_mut(i));
        }
    });
}

/// gate, up in place → their gradients.
pub fn swiglu_backward(gate: RowsMut, up: RowsMut, d_out: Rows) {
    assert!(gate.rows == d_out.rows && gate.cols == d_out.cols, "swiglu: shapes differ");
    assert!(up.rows == d_out.rows && up.cols == d_out.cols, "swiglu: shapes differ");
    let pairs: Vec<_> = gate.blocks(BLOCK, 0).into_iter().zip(up.blocks(BLOCK, 0)).collect();
    each(pairs, |((start, mut gate), (_, mut up))| {
        for i in 0..gate.rows {
            backward_row(gate.row_mut(i), up.row_mut(i), d_out.row(start + i));
        }
    });
}
