//! Counts what operations cost, and checks their shapes: the same for every device.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{AdamWState, AttentionShape, Buffer, Lane, Mat};

/// Running counts of one rank.
#[derive(Debug, Default)]
pub struct Meter(Mutex<Counts>);

/// A reading of a [`Meter`]. FLOPs of millions of tokens over many layers leave 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Floating-point operations of matrix products.
    pub matmul_flops: u128,
    /// Of attention's forward pass, whether it is the first or one computed again.
    pub attention_flops: u128,
    /// Of attention's backward pass.
    pub attention_backward_flops: u128,
    /// Bytes that row-wise operations, copies on the device and updates read and write.
    pub memory_bytes: u128,
    /// Bytes from host memory to the device.
    pub host_in_bytes: u64,
    /// Bytes from the device to host memory.
    pub host_out_bytes: u64,
    /// Bytes sent to other ranks.
    pub communication_bytes: u64,
}

impl Counts {
    /// All floating-point operations.
    pub fn flops(&self) -> u128 {
        self.matmul_flops + self.attention_flops + self.attention_backward_flops
    }

    /// Bytes between device and host memory, both ways.
    pub fn host_link_bytes(&self) -> u64 {
        self.host_in_bytes + self.host_out_bytes
    }

    /// All but what rows cost: in a ring, ranks differ in how many they merge.
    pub fn products_and_copies(&self) -> Counts {
        Counts { memory_bytes: 0, ..*self }
    }

    /// What was counted after an earlier reading of the same meter.
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            matmul_flops: self.matmul_flops - before.matmul_flops,
            attention_flops: self.attention_flops - before.attention_flops,
            attention_backward_flops: self.attention_backward_flops - before.attention_backward_flops,
            memory_bytes: self.memory_bytes - before.memory_bytes,
            host_in_bytes: self.host_in_bytes - before.host_in_bytes,
            host_out_bytes: self.host_out_bytes - before.host_out_bytes,
            communication_bytes: self.communication_bytes - before.communication_bytes,
        }
    }
}

impl Meter {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // A panic elsewhere leaves plain counters behind: they stay readable.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts so far.
    pub fn read(&self) -> Counts {
        *self.counts()
    }

    /// A copy: its bytes count where its lane goes: to host memory, from it, or on the device.
    pub fn copy<B: Buffer>(&self, lane: Lane, source: Mat<B>, destination: Mat<B>) {
        assert!(source.rows == destination.rows && source.cols == destination.cols, "copy: shapes differ");
        let mut counts = self.counts();
        match lane {
            Lane::In => counts.host_in_bytes += source.bytes(),
            Lane::Out => counts.host_out_bytes += source.bytes(),
            Lane::Compute => counts.memory_bytes += u128::from(source.bytes() + destination.bytes()),
            Lane::Comm => {}
        }
    }

    /// What a row-wise operation reads and writes, each view once for each time.
    pub fn rowwise<B: Buffer>(&self, views: &[Mat<B>]) {
        self.counts().memory_bytes += views.iter().map(|v| u128::from(v.bytes())).sum::<u128>();
    }

    /// An update: reads all four, writes all but the gradients.
    pub fn update<B: Buffer>(&self, state: &AdamWState<B>) {
        let [w, g, m, v] = [state.weights, state.gradients, state.first_moment, state.second_moment].map(Mat::flat);
        self.rowwise(&[w, w, g, m, m, v, v]);
    }

    /// Counts bytes sent to other ranks.
    pub fn sent(&self, bytes: u64) {
        self.counts().communication_bytes += bytes;
    }

    /// A matrix product: 2·m·n·k.
    pub fn matmul<B: Buffer>(&self, a: Mat<B>, trans_a: bool, b: Mat<B>, trans_b: bool, c: Mat<B>) {
        let (m, k) = if trans_a { (a.cols, a.rows) } else { (a.rows, a.cols) };
        let (k_b, n) = if trans_b { (b.cols, b.rows) } else { (b.rows, b.cols) };
        assert!(k == k_b && c.rows == m && c.cols == n, "matmul: [{m}, {k}] · [{k_b}, {n}] → [{}, {}]", c.rows, c.cols);
        self.counts().matmul_flops += 2 * m as u128 * n as u128 * k as u128;
    }

    /// Attention forward: 4·rows·keys·heads·head_dim, half of it where causal.
    pub fn attention<B: Buffer>(&self, shape: &AttentionShape, q: Mat<B>, k: Mat<B>, v: Mat<B>, lse: Mat<B>) {
        self.counts().attention_flops += attention_flops(shape, q, k, v, lse);
    }

    /// Attention backward: 2.5 times the forward's (five products for two).
    pub fn attention_backward<B: Buffer>(&self, shape: &AttentionShape, q: Mat<B>, k: Mat<B>, v: Mat<B>, lse: Mat<B>) {
        let forward = attention_flops(shape, q, k, v, lse);
        self.counts().attention_backward_flops += forward + forward / 2 * 3;
    }
}

fn attention_flops<B: Buffer>(shape: &AttentionShape, q: Mat<B>, k: Mat<B>, v: Mat<B>, lse: Mat<B>) -> u128 {
    let (q_cols, kv_cols) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    assert!(q.cols == q_cols && k.cols == kv_cols && v.cols == kv_cols && k.rows == v.rows, "attention: shapes");
    assert!(!shape.causal || q.rows == k.rows, "attention: causal needs as many keys as queries");
    assert!(lse.rows == shape.heads && lse.cols == q.rows, "attention: log-sum-exp is [heads, queries]");
    let full = 4 * q.rows as u128 * k.rows as u128 * (shape.heads * shape.head_dim) as u128;
    if shape.causal { full / 2 } else { full }
}
