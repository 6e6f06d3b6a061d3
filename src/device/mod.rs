//! The device: what a training step needs of the machine it runs on.
//!
//! The step is written once, against [`Device`]. Operations write to buffers that
//! the caller gives, accumulate where asked, and take matrices as views
//! ([`Mat`]): slices of rows and of heads need no copy. Copies and exchanges name
//! a [`Lane`]; lanes are ordered among each other by events alone.

pub mod cpu;
pub mod dry;
mod mat;
mod meter;

use anyhow::Result;

pub use mat::Mat;
pub use meter::{Counts, Meter};

use crate::memory::category::Category;
use crate::memory::ledger::{Ledger, Place};

/// A target that counts for nothing (transformers' −100).
pub const IGNORED: u32 = u32::MAX;

/// Type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    F32,
    Bf16,
    U32,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::F32 | DType::U32 => 4,
            DType::Bf16 => 2,
        }
    }
}

/// A queue of work. Work on one lane runs in order; lanes run beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    Compute,
    /// Host memory to the device.
    In,
    /// The device to host memory.
    Out,
    /// Between ranks.
    Comm,
}

/// Memory under a lease.
pub trait Buffer: Send + Sync {
    /// Number of elements.
    fn elements(&self) -> usize;
    /// Type of the elements.
    fn dtype(&self) -> DType;
    /// Enters the bytes under another category.
    fn recategorize(&mut self, category: Category);
}

/// A matrix view that owns its hold on the memory, so that it can go to another
/// thread: what ranks of one process exchange.
pub trait SharedMat: Clone + Send + 'static {
    /// self ← source.
    fn copy_from(&self, source: &Self) -> Result<()>;
    /// self ← self + source.
    fn add_from(&self, source: &Self) -> Result<()>;
}

/// Another rank failed first: this one stopped for it. Lanes hand it on as it is, so that
/// the first cause can be told from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped, since another rank failed")]
pub struct Stopped;

/// Work for a lane other than [`Lane::Compute`].
pub type Job = Box<dyn FnOnce() -> Result<()> + Send>;

/// What causal or full attention works on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Factor on the scores: 1/√head_dim.
    pub scale: f32,
    /// Row i of the queries sees keys 0..=i; else all.
    pub causal: bool,
}

/// Where attention's backward writes. All f32, gradients of `q`, `k`, `v`.
pub struct AttentionGradients<'a, B> {
    pub dq: Mat<'a, B>,
    pub dk: Mat<'a, B>,
    pub dv: Mat<'a, B>,
    /// Add to what is there.
    pub accumulate: bool,
}

/// A norm over each head followed by the rotation of the rotary embedding.
pub struct HeadNormRope<'a, B> {
    /// Weight of the head norm, [head_dim]; none: no norm (llama).
    pub weight: Option<Mat<'a, B>>,
    pub eps: f64,
    /// [tokens, head_dim / 2], the attention factor included.
    pub cos: Mat<'a, B>,
    /// [tokens, head_dim / 2], the attention factor included.
    pub sin: Mat<'a, B>,
    pub head_dim: usize,
}

/// One AdamW update of a flat run of elements.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    pub learning_rate: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    /// Update number, from 1.
    pub update: u32,
    /// Factor on the gradients: clipping.
    pub gradient_scale: f64,
    pub seed: u64,
    /// Number of the unit, and of its first element here within the whole unit:
    /// keys of stochastic rounding, so that sharding changes nothing.
    pub unit: u64,
    pub first_element: u64,
}

/// Weights, gradients and moments of a rank's part of a unit, flat.
pub struct AdamWState<'a, B> {
    pub weights: &'a B,
    pub gradients: &'a B,
    pub first_moment: &'a B,
    pub second_moment: &'a B,
}

/// What a step needs of a machine. One value serves one rank.
///
/// Every operation runs on [`Lane::Compute`] unless it names a lane. Matrices are
/// row-major; `[rows, cols]` in the docs below.
pub trait Device: Sized {
    type Buffer: Buffer;
    type Shared: SharedMat;
    /// A moment in a lane's queue.
    type Event: Clone + Send;

    fn ledger(&self) -> &Ledger;
    fn meter(&self) -> &Meter;
    /// Type of activations and whole weights.
    fn compute_dtype(&self) -> DType;

    /// Takes memory; its content is undefined (the CPU fills it with NaN).
    fn allocate(&self, place: Place, category: Category, dtype: DType, elements: usize) -> Result<Self::Buffer>;
    /// Takes memory for token ids or targets and fills it.
    fn upload_ids(&self, category: Category, ids: &[u32]) -> Result<Self::Buffer>;
    /// Writes f32 values to `out`, converting to its type.
    fn write(&self, values: &[f32], out: &Self::Buffer) -> Result<()>;
    /// Fills a buffer with the f32 values that `values` puts into the slice of zeros that it is given.
    /// The dry device does not ask for them.
    fn initialize(&self, out: &Self::Buffer, values: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<()> {
        let mut all = vec![0.0; out.elements()];
        values(&mut all)?;
        self.write(&all, out)
    }
    /// Reads a buffer as f32. The dry device, which has no values, returns none.
    fn read(&self, buffer: &Self::Buffer) -> Result<Vec<f32>>;

    /// The moment at which all work so far on `lane` is done.
    fn record(&self, lane: Lane) -> Result<Self::Event>;
    /// Work that follows on `lane` starts after `event`. An error of the awaited
    /// work comes out here.
    fn wait(&self, lane: Lane, event: &Self::Event) -> Result<()>;
    /// Puts work on a lane other than compute.
    fn enqueue(&self, lane: Lane, job: Job) -> Result<()>;
    /// A view that can go to another rank of the process.
    fn share(&self, mat: Mat<Self::Buffer>) -> Self::Shared;

    /// destination ← source, of the same shape; between device and host memory too.
    fn copy(&self, lane: Lane, source: Mat<Self::Buffer>, destination: Mat<Self::Buffer>) -> Result<()>;
    fn fill(&self, out: Mat<Self::Buffer>, value: f32) -> Result<()>;
    /// out ← out + x.
    fn add(&self, x: Mat<Self::Buffer>, out: Mat<Self::Buffer>) -> Result<()>;

    /// c (+)= op(a) · op(b), summed in f32; `trans_*`: the operand is given transposed.
    fn matmul(
        &self,
        a: Mat<Self::Buffer>,
        trans_a: bool,
        b: Mat<Self::Buffer>,
        trans_b: bool,
        c: Mat<Self::Buffer>,
        accumulate: bool,
    ) -> Result<()>;

    /// out [tokens, hidden] ← rows of `table` [vocabulary, hidden]; `first`: the
    /// token of `ids` that row 0 of `out` stands for.
    fn embedding(
        &self,
        ids: &Self::Buffer,
        first: usize,
        table: Mat<Self::Buffer>,
        out: Mat<Self::Buffer>,
    ) -> Result<()>;
    /// d_table (f32) += rows of `d_out`, in the order of tokens.
    fn embedding_backward(
        &self,
        ids: &Self::Buffer,
        first: usize,
        d_out: Mat<Self::Buffer>,
        d_table: Mat<Self::Buffer>,
    ) -> Result<()>;

    /// out ← x / rms(x) · weight, by row. `weight`: [1, hidden].
    fn rms_norm(&self, x: Mat<Self::Buffer>, weight: Mat<Self::Buffer>, eps: f64, out: Mat<Self::Buffer>)
    -> Result<()>;
    /// dx += gradient of x; d_weight (f32) += gradient of the weight.
    fn rms_norm_backward(
        &self,
        x: Mat<Self::Buffer>,
        weight: Mat<Self::Buffer>,
        eps: f64,
        dy: Mat<Self::Buffer>,
        dx: Mat<Self::Buffer>,
        d_weight: Mat<Self::Buffer>,
    ) -> Result<()>;

    /// cos, sin [tokens, head_dim / 2] of position × inverse frequency, times
    /// `attention_scaling`. Phases in f64, so that position 1,048,575 is right.
    fn rope_table(
        &self,
        inverse_frequencies: &[f64],
        positions: &[u32],
        attention_scaling: f64,
        cos: Mat<Self::Buffer>,
        sin: Mat<Self::Buffer>,
    ) -> Result<()>;
    /// x [tokens, heads · head_dim] in place: head norm, then rotation of halves.
    fn head_norm_rope(&self, op: &HeadNormRope<Self::Buffer>, x: Mat<Self::Buffer>) -> Result<()>;
    /// dy in place: gradient of the output → gradient of `x`, the input as it was.
    fn head_norm_rope_backward(
        &self,
        op: &HeadNormRope<Self::Buffer>,
        x: Mat<Self::Buffer>,
        dy: Mat<Self::Buffer>,
        d_weight: Option<Mat<Self::Buffer>>,
    ) -> Result<()>;

    /// o [q_rows, heads · head_dim]; lse (f32) [heads, q_rows], natural logarithm
    /// of the sum over the scaled scores.
    fn attention(
        &self,
        shape: &AttentionShape,
        q: Mat<Self::Buffer>,
        k: Mat<Self::Buffer>,
        v: Mat<Self::Buffer>,
        o: Mat<Self::Buffer>,
        lse: Mat<Self::Buffer>,
    ) -> Result<()>;
    /// Gradients for the keys given here under the output and log-sum-exp of all keys.
    #[allow(clippy::too_many_arguments)] // the operands of the operation
    fn attention_backward(
        &self,
        shape: &AttentionShape,
        q: Mat<Self::Buffer>,
        k: Mat<Self::Buffer>,
        v: Mat<Self::Buffer>,
        o: Mat<Self::Buffer>,
        d_o: Mat<Self::Buffer>,
        lse: Mat<Self::Buffer>,
        out: AttentionGradients<Self::Buffer>,
    ) -> Result<()>;
    /// Merges a block's output and log-sum-exp into the running ones, all f32.
    fn attention_merge(
        &self,
        head_dim: usize,
        o: Mat<Self::Buffer>,
        lse: Mat<Self::Buffer>,
        o_block: Mat<Self::Buffer>,
        lse_block: Mat<Self::Buffer>,
    ) -> Result<()>;

    /// out ← silu(gate) · up.
    fn swiglu(&self, gate: Mat<Self::Buffer>, up: Mat<Self::Buffer>, out: Mat<Self::Buffer>) -> Result<()>;
    /// gate, up in place → their gradients.
    fn swiglu_backward(&self, gate: Mat<Self::Buffer>, up: Mat<Self::Buffer>, d_out: Mat<Self::Buffer>) -> Result<()>;

    /// logits [rows, vocabulary] in place → gradient times `scale`; losses (f32)
    /// [1, rows] ← loss of each row, 0 where the target is ignored. `first`: the
    /// target that row 0 stands for.
    fn cross_entropy_in_place(
        &self,
        logits: Mat<Self::Buffer>,
        targets: &Self::Buffer,
        first: usize,
        scale: f32,
        losses: Mat<Self::Buffer>,
    ) -> Result<()>;
    /// out (f32) ← log-softmax of each row.
    fn log_softmax(&self, logits: Mat<Self::Buffer>, out: Mat<Self::Buffer>) -> Result<()>;
    /// The losses and the gradient of the logits, times `scale`, from log-probabilities.
    fn nll(
        &self,
        log_probabilities: Mat<Self::Buffer>,
        targets: &Self::Buffer,
        scale: f32,
        d_logits: Mat<Self::Buffer>,
        losses: Mat<Self::Buffer>,
    ) -> Result<()>;

    /// Sum of the squares of an f32 buffer.
    fn sum_squares(&self, x: &Self::Buffer) -> Result<f64>;
    /// One update, in place.
    fn adamw(&self, update: &AdamW, state: AdamWState<Self::Buffer>) -> Result<()>;

    /// A working activation of the compute type on the device, [rows, cols].
    fn working(&self, rows: usize, cols: usize) -> Result<Self::Buffer> {
        self.allocate(Place::Device, Category::Working, self.compute_dtype(), rows * cols)
    }
}
