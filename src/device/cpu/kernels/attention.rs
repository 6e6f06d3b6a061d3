//! Attention in tiles with an online softmax (FlashAttention): memory for a tile of
//! scores only, forward and backward, causal or over a rectangular block of keys.

use super::matmul::product;
use super::simd::{dispatch, dot, exp};
use super::{Rows, RowsMut, each, map};
use crate::device::AttentionShape;

/// Query rows of a tile of scores.
const Q_TILE: usize = 64;
/// Keys of a tile of scores.
const KV_TILE: usize = 128;

impl AttentionShape {
    /// The columns of a query head.
    fn q<'a>(&self, x: Rows<'a>, head: usize) -> Rows<'a> {
        columns(x, head * self.head_dim, self.head_dim)
    }

    /// The columns of the key head that a query head uses.
    fn kv<'a>(&self, x: Rows<'a>, kv_head: usize) -> Rows<'a> {
        columns(x, kv_head * self.head_dim, self.head_dim)
    }

    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    fn check(&self, q: Rows, k: Rows, v: Rows) {
        assert!(
            self.heads.is_multiple_of(self.kv_heads),
            "attention: {} heads for {} KV heads",
            self.heads,
            self.kv_heads
        );
        assert!(q.cols == self.heads * self.head_dim, "attention: columns of the queries");
        assert!(k.cols == self.kv_heads * self.head_dim && v.cols == k.cols, "attention: columns of keys, values");
        assert!(k.rows == v.rows && (!self.causal || q.rows == k.rows), "attention: numbers of keys");
    }
}

/// Columns `from..from + cols`.
fn columns(x: Rows, from: usize, cols: usize) -> Rows {
    let data = if x.rows == 0 { x.data } else { &x.data[from..(x.rows - 1) * x.stride + from + cols] };
    Rows { data, cols, ..x }
}

fn columns_mut<'a>(x: &'a mut RowsMut, from: usize, cols: usize) -> RowsMut<'a> {
    let end = (x.rows - 1) * x.stride + from + cols;
    RowsMut { data: &mut x.data[from..end], rows: x.rows, cols, stride: x.stride }
}

fn full(data: &[f32], rows: usize, cols: usize) -> Rows<'_> {
    Rows { data: &data[..rows * cols], rows, cols, stride: cols }
}

fn full_mut(data: &mut [f32], rows: usize, cols: usize) -> RowsMut<'_> {
    RowsMut { data: &mut data[..rows * cols], rows, cols, stride: cols }
}

/// Sets the scores that a causal row does not see to −∞.
fn mask(scores: &mut [f32], keys: usize, q_start: usize, k_start: usize) {
    for (i, row) in scores.chunks_exact_mut(keys).enumerate() {
        let seen = (q_start + i + 1).saturating_sub(k_start).min(keys);
        row[seen..].fill(f32::NEG_INFINITY);
    }
}

dispatch! {
    /// One row of the online softmax: scores → probabilities under the new maximum.
    /// Returns (new maximum, factor on what was there, sum of the probabilities).
    fn softmax_row(scores: &mut [f32], scale: f32, max: f32) -> (f32, f32, f32) {
        let mut tile_max = f32::NEG_INFINITY;
        for s in scores.iter_mut() {
            *s *= scale;
            tile_max = tile_max.max(*s);
        }
        let new_max = max.max(tile_max);
        if new_max == f32::NEG_INFINITY {
            scores.fill(0.0);
            return (new_max, 1.0, 0.0);
        }
        let mut lanes = [0.0f32; 8];
        let mut eights = scores.chunks_exact_mut(8);
        for eight in &mut eights {
            for i in 0..8 {
                eight[i] = exp(eight[i] - new_max);
                lanes[i] += eight[i];
            }
        }
        for (i, s) in eights.into_remainder().iter_mut().enumerate() {
            *s = exp(*s - new_max);
            lanes[i] += *s;
        }
        (new_max, exp(max - new_max), lanes.iter().sum())
    }
}

dispatch! {
    /// scores → probabilities, by the final log-sum-exp.
    fn probabilities(scores: &mut [f32], scale: f32, lse: f32) {
        for s in scores {
            *s = exp(*s * scale - lse);
        }
    }
}

dispatch! {
    /// d_p → gradient of the scores before the scale: P·(dP − δ)·scale.
    fn score_gradient(d_p: &mut [f32], p: &[f32], delta: f32, scale: f32) {
        for (d, p) in d_p.iter_mut().zip(p) {
            *d = p * (*d - delta) * scale;
        }
    }
}

/// `q`, `o`: [q_rows, heads · head_dim]; `k`, `v`: [kv_rows, kv_heads · head_dim];
/// `lse`: [heads, q_rows], natural logarithm of the sum over the scaled scores.
pub fn attention_forward(a: &AttentionShape, q: Rows, k: Rows, v: Rows, o: RowsMut, mut lse: RowsMut) {
    a.check(q, k, v);
    assert!(o.rows == q.rows && o.cols == q.cols, "attention: shape of the output");
    assert!(lse.rows == a.heads && lse.cols == q.rows, "attention: log-sum-exp is [heads, queries]");
    let d = a.head_dim;
    let tiles = map(o.blocks(Q_TILE, 0), |(start, mut o)| {
        let rows = o.rows;
        let mut scores = vec![0.0; rows * KV_TILE];
        let mut tile_lse = vec![0.0; a.heads * rows];
        let seen = if a.causal { start + rows } else { k.rows };
        for head in 0..a.heads {
            let q = a.q(q, head).part(start, start + rows);
            let (k, v) = (a.kv(k, head / a.group()), a.kv(v, head / a.group()));
            let (mut max, mut sum) = ([f32::NEG_INFINITY; Q_TILE], [0.0f32; Q_TILE]);
            let mut out = columns_mut(&mut o, head * d, d);
            for i in 0..rows {
                out.row_mut(i).fill(0.0);
            }
            for k_start in (0..seen).step_by(KV_TILE) {
                let keys = KV_TILE.min(seen - k_start);
                let (k, v) = (k.part(k_start, k_start + keys), v.part(k_start, k_start + keys));
                product(q, false, k, true, full_mut(&mut scores, rows, keys), false);
                if a.causal && k_start + keys > start {
                    mask(&mut scores[..rows * keys], keys, start, k_start);
                }
                for (i, row) in scores[..rows * keys].chunks_exact_mut(keys).enumerate() {
                    let (new_max, factor, tile_sum) = softmax_row(row, a.scale, max[i]);
                    max[i] = new_max;
                    sum[i] = sum[i] * factor + tile_sum;
                    out.row_mut(i).iter_mut().for_each(|o| *o *= factor);
                }
                product(full(&scores, rows, keys), false, v, false, out.reborrow(), true);
            }
            for i in 0..rows {
                let inverse = if sum[i] > 0.0 { 1.0 / sum[i] } else { 0.0 };
                out.row_mut(i).iter_mut().for_each(|o| *o *= inverse);
                tile_lse[head * rows + i] = max[i] + sum[i].ln();
            }
        }
        (start, rows, tile_lse)
    });
    for (start, rows, tile_lse) in tiles {
        for head in 0..a.heads {
            lse.row_mut(head)[start..start + rows].copy_from_slice(&tile_lse[head * rows..(head + 1) * rows]);
        }
    }
}

/// The backward pass under the output and log-sum-exp of all keys, of which `k`, `v` may
/// be a block. `delta` [heads · q_rows]: scratch. With `accumulate` the gradients add.
#[allow(clippy::too_many_arguments)] // the operands of the operation
pub fn attention_backward(
    a: &AttentionShape,
    q: Rows,
    k: Rows,
    v: Rows,
    o: Rows,
    d_o: Rows,
    lse: Rows,
    delta: &mut [f32],
    dq: RowsMut,
    dk: RowsMut,
    dv: RowsMut,
    accumulate: bool,
) {
    a.check(q, k, v);
    assert!(o.rows == q.rows && o.cols == q.cols && d_o.rows == q.rows && d_o.cols == q.cols, "attention: output");
    assert!(dq.rows == q.rows && dq.cols == q.cols, "attention: shape of dq");
    assert!(dk.rows == k.rows && dk.cols == k.cols && dv.rows == k.rows && dv.cols == k.cols, "attention: dk, dv");
    assert!(lse.rows == a.heads && lse.cols == q.rows && delta.len() == a.heads * q.rows, "attention: lse, delta");
    for (head, delta) in delta.chunks_exact_mut(q.rows.max(1)).enumerate() {
        let (o, d_o) = (a.q(o, head), a.q(d_o, head));
        delta.iter_mut().enumerate().for_each(|(i, delta)| *delta = dot(o.row(i), d_o.row(i)));
    }
    let context = Backward { a, q, k, v, d_o, lse, delta };
    each(dq.blocks(Q_TILE, 0), |(start, dq)| context.queries(start, dq, accumulate));
    let pairs: Vec<_> = dk.blocks(KV_TILE, 0).into_iter().zip(dv.blocks(KV_TILE, 0)).collect();
    each(pairs, |((start, dk), (_, dv))| context.keys(start, dk, dv, accumulate));
}

struct Backward<'a> {
    a: &'a AttentionShape,
    q: Rows<'a>,
    k: Rows<'a>,
    v: Rows<'a>,
    d_o: Rows<'a>,
    lse: Rows<'a>,
    delta: &'a [f32],
}

/// One tile's probabilities and score gradients.
struct Tile {
    p: Vec<f32>,
    d_s: Vec<f32>,
}

impl Tile {
    fn new() -> Tile {
        Tile { p: vec![0.0; Q_TILE * KV_TILE], d_s: vec![0.0; Q_TILE * KV_TILE] }
    }
}

impl Backward<'_> {
    /// Fills `tile` for queries `q.0..q.1` and keys `k.0..k.1` of a head.
    fn tile(&self, head: usize, q: (usize, usize), k: (usize, usize), tile: &mut Tile) {
        let a = self.a;
        let (rows, keys) = (q.1 - q.0, k.1 - k.0);
        let kv_head = head / a.group();
        let (p, d_s) = (&mut tile.p[..rows * keys], &mut tile.d_s[..rows * keys]);
        let key_rows = a.kv(self.k, kv_head).part(k.0, k.1);
        product(a.q(self.q, head).part(q.0, q.1), false, key_rows, true, full_mut(p, rows, keys), false);
        if a.causal && k.1 > q.0 {
            mask(p, keys, q.0, k.0);
        }
        let value_rows = a.kv(self.v, kv_head).part(k.0, k.1);
        product(a.q(self.d_o, head).part(q.0, q.1), false, value_rows, true, full_mut(d_s, rows, keys), false);
        let (lse, delta) = (&self.lse.row(head)[q.0..q.1], &self.delta[head * self.q.rows..][q.0..q.1]);
        for i in 0..rows {
            let (p, d_s) = (&mut p[i * keys..(i + 1) * keys], &mut d_s[i * keys..(i + 1) * keys]);
            if lse[i] == f32::NEG_INFINITY {
                p.fill(0.0);
            } else {
                probabilities(p, a.scale, lse[i]);
            }
            score_gradient(d_s, p, delta[i], a.scale);
        }
    }

    /// dQ of a tile of queries: over all keys that it sees.
    fn queries(&self, start: usize, mut dq: RowsMut, accumulate: bool) {
        let (a, end) = (self.a, start + dq.rows);
        let seen = if a.causal { end } else { self.k.rows };
        let mut tile = Tile::new();
        for head in 0..a.heads {
            let mut dq = columns_mut(&mut dq, head * a.head_dim, a.head_dim);
            if !accumulate {
                (0..dq.rows).for_each(|i| dq.row_mut(i).fill(0.0));
            }
            for k_start in (0..seen).step_by(KV_TILE) {
                let k_end = (k_start + KV_TILE).min(seen);
                self.tile(head, (start, end), (k_start, k_end), &mut tile);
                let k = a.kv(self.k, head / a.group()).part(k_start, k_end);
                product(full(&tile.d_s, end - start, k_end - k_start), false, k, false, dq.reborrow(), true);
            }
        }
    }

    /// dK and dV of a tile of keys: over all queries that see it, the heads of a group in order.
    fn keys(&self, start: usize, mut dk: RowsMut, mut dv: RowsMut, accumulate: bool) {
        let (a, end) = (self.a, start + dk.rows);
        let first_query = if a.causal { start / Q_TILE * Q_TILE } else { 0 };
        let mut tile = Tile::new();
        for kv_head in 0..a.kv_heads {
            let mut dk = columns_mut(&mut dk, kv_head * a.head_dim, a.head_dim);
            let mut dv = columns_mut(&mut dv, kv_head * a.head_dim, a.head_dim);
            if !accumulate {
                (0..dk.rows).for_each(|i| dk.row_mut(i).fill(0.0));
                (0..dv.rows).for_each(|i| dv.row_mut(i).fill(0.0));
            }
            for head in kv_head * a.group()..(kv_head + 1) * a.group() {
                for q_start in (first_query..self.q.rows).step_by(Q_TILE) {
                    let q_end = (q_start + Q_TILE).min(self.q.rows);
                    self.tile(head, (q_start, q_end), (start, end), &mut tile);
                    let (rows, keys) = (q_end - q_start, end - start);
                    let (q, d_o) = (a.q(self.q, head).part(q_start, q_end), a.q(self.d_o, head).part(q_start, q_end));
                    product(full(&tile.p, rows, keys), true, d_o, false, dv.reborrow(), true);
                    product(full(&tile.d_s, rows, keys), true, q, false, dk.reborrow(), true);
                }
            }
        }
    }
}

/// Merges a block's output and log-sum-exp into the running ones:
/// o ← o − σ(lse_b − lse)·(o − o_b), lse ← lse − ln σ(lse − lse_b). Stable for any
/// difference; an empty state (−∞) takes the other, and two of them stay empty.
pub fn merge(mut o: RowsMut, mut lse: RowsMut, o_block: Rows, lse_block: Rows, head_dim: usize) {
    assert!(o.rows == o_block.rows && o.cols == o_block.cols, "merge: shapes of the outputs");
    assert!(lse.rows == lse_block.rows && lse.cols == lse_block.cols && lse.cols == o.rows, "merge: log-sum-exp");
    assert!(lse.rows * head_dim == o.cols, "merge: heads");
    for head in 0..lse.rows {
        for i in 0..o.rows {
            let (old, new) = (lse.row(head)[i], lse_block.row(head)[i]);
            if new == f32::NEG_INFINITY {
                continue;
            }
            let block = &o_block.row(i)[head * head_dim..(head + 1) * head_dim];
            let out = &mut o.row_mut(i)[head * head_dim..(head + 1) * head_dim];
            if old == f32::NEG_INFINITY {
                out.copy_from_slice(block);
                lse.row_mut(head)[i] = new;
                continue;
            }
            let weight = 1.0 / (1.0 + (old - new).exp());
            out.iter_mut().zip(block).for_each(|(o, b)| *o -= weight * (*o - b));
            lse.row_mut(head)[i] = old.max(new) + (-(old - new).abs()).exp().ln_1p();
        }
    }
}
