//! Counts what operations cost, and checks their shapes: the same for every device.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{AttentionShape, Buffer, Lane, Mat};

/// Running counts of one rank.
#[derive(Debug, Default)]
pub struct Meter {
    flops: AtomicU64,
    host_link_bytes: AtomicU64,
    communication_bytes: AtomicU64,
}

/// A reading of a [`Meter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Floating-point operations of matrix products and attention.
    pub flops: u64,
    /// Bytes between device and host memory, both ways.
    pub host_link_bytes: u64,
    /// Bytes sent to other ranks.
    pub communication_bytes: u64,
}

impl Meter {
    /// The counts so far.
    pub fn read(&self) -> Counts {
        Counts {
            flops: self.flops.load(Relaxed),
            host_link_bytes: self.host_link_bytes.load(Relaxed),
            communication_bytes: self.communication_bytes.load(Relaxed),
        }
    }

    /// A copy: its bytes count where the lane goes to host memory or comes from it.
    pub fn copy<B: Buffer>(&self, lane: Lane, source: Mat<B>, destination: Mat<B>) {
        assert!(source.rows == destination.rows && source.cols == destination.cols, "copy: shapes differ");
        if matches!(lane, Lane::In | Lane::Out) {
            self.host_link_bytes.fetch_add(source.bytes(), Relaxed);
        }
    }

    /// Counts bytes sent to other ranks.
    pub fn sent(&self, bytes: u64) {
        self.communication_bytes.fetch_add(bytes, Relaxed);
    }

    /// A matrix product: 2·m·n·k.
    pub fn matmul<B: Buffer>(&self, a: Mat<B>, trans_a: bool, b: Mat<B>, trans_b: bool, c: Mat<B>) {
        let (m, k) = if trans_a { (a.cols, a.rows) } else { (a.rows, a.cols) };
        let (k_b, n) = if trans_b { (b.cols, b.rows) } else { (b.rows, b.cols) };
        assert!(k == k_b && c.rows == m && c.cols == n, "matmul: [{m}, {k}] · [{k_b}, {n}] → [{}, {}]", c.rows, c.cols);
        self.flops.fetch_add(2 * m as u64 * n as u64 * k as u64, Relaxed);
    }

    /// Attention forward: 4·rows·keys·heads·head_dim, half of it where causal.
    pub fn attention<B: Buffer>(&self, shape: &AttentionShape, q: Mat<B>, k: Mat<B>, v: Mat<B>, lse: Mat<B>) {
        let (q_cols, kv_cols) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        assert!(q.cols == q_cols && k.cols == kv_cols && v.cols == kv_cols && k.rows == v.rows, "attention: shapes");
        assert!(!shape.causal || q.rows == k.rows, "attention: causal needs as many keys as queries");
        assert!(lse.rows == shape.heads && lse.cols == q.rows, "attention: log-sum-exp is [heads, queries]");
        self.flops.fetch_add(attention_flops(shape, q.rows, k.rows), Relaxed);
    }

    /// Attention backward: 2.5 times the forward's (five products for two).
    pub fn attention_backward<B: Buffer>(&self, shape: &AttentionShape, q: Mat<B>, k: Mat<B>, v: Mat<B>, lse: Mat<B>) {
        self.attention(shape, q, k, v, lse);
        self.flops.fetch_add(attention_flops(shape, q.rows, k.rows) / 2 * 3, Relaxed);
    }
}

fn attention_flops(shape: &AttentionShape, q_rows: usize, kv_rows: usize) -> u64 {
    let full = 4 * q_rows as u64 * kv_rows as u64 * (shape.heads * shape.head_dim) as u64;
    if shape.causal { full / 2 } else { full }
}
