//! The dry device: shapes alone. It runs the very step that will run, computes
//! nothing, and leaves the ledger and the meter as that step would.

use std::sync::Arc;

use anyhow::Result;

use super::*;
use crate::memory::ledger::{Lease, ProcessTotal};

/// The device that a dry one stands for: what of it the books depend on.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// Type of activations and whole weights.
    pub compute_dtype: DType,
    /// Every buffer takes a multiple of this, bytes.
    pub granularity: u64,
    /// What driver and libraries hold before the first buffer, bytes.
    pub fixed_bytes: u64,
    /// Bytes that attention's backward needs beside its operands, for this many query and key rows.
    attention_backward_scratch: fn(&AttentionShape, q_rows: usize, kv_rows: usize) -> u64,
}

impl Profile {
    /// The CPU device of this program.
    pub const CPU: Profile = Profile {
        compute_dtype: DType::F32,
        granularity: 1,
        fixed_bytes: 0,
        attention_backward_scratch: |shape, q_rows, _| 4 * cpu::attention_backward_scratch(shape, q_rows) as u64,
    };

    /// An NVIDIA GPU of the Hopper generation.
    ///
    /// Fixed bytes, from `cuMemGetInfo` on one H200 (driver 580.159, CUDA 13.0, PyTorch 2.11's
    /// libraries): a context 527 MiB, cuBLAS with the first product's modules 66 MiB and its
    /// workspace 32 MiB, cuDNN 9.19 with attention's modules 16 MiB. NCCL's are not in it:
    /// they were not measured. The pool gives whole buffers (`cuMemAllocAsync`, used bytes
    /// equal those asked for) at addresses of 256 bytes' alignment.
    pub const GPU: Profile = Profile {
        compute_dtype: DType::Bf16,
        granularity: 256,
        fixed_bytes: (527 + 66 + 32 + 16) << 20,
        attention_backward_scratch: cudnn_backward_scratch,
    };
}

/// Bytes of cuDNN 9.19's attention backward, called for one KV head at a time, as its plans
/// have it on an H200: 256, the gradients of keys and values for each query head of the group
/// in bf16, and a sum in f32 for each query row and head.
fn cudnn_backward_scratch(shape: &AttentionShape, q_rows: usize, kv_rows: usize) -> u64 {
    let group = (shape.heads / shape.kv_heads) as u64;
    let by_query_head = if group > 1 { 2 * group * kv_rows as u64 * shape.head_dim as u64 * 2 } else { 0 };
    256 + by_query_head + 4 * shape.heads as u64 * q_rows as u64
}

/// A device that only keeps the books, as the device of its profile would.
pub struct Dry {
    ledger: Ledger,
    meter: Meter,
    profile: Profile,
    /// Driver and libraries.
    _fixed: Option<Lease>,
}

/// A shape under a lease.
pub struct DryBuffer {
    elements: usize,
    dtype: DType,
    lease: Lease,
}

/// Nothing to share.
#[derive(Clone)]
pub struct DryShared;

impl Dry {
    /// `budget`: bytes that the rank may hold on its device. An error if not even driver and
    /// libraries have room.
    pub fn new(budget: Option<u64>, profile: Profile) -> Result<Dry> {
        let ledger = Ledger::new(budget, Arc::new(ProcessTotal::default()));
        let fixed = match profile.fixed_bytes {
            0 => None,
            bytes => Some(ledger.lease(Place::Device, Category::Fixed, bytes).map_err(|refusal| *refusal)?),
        };
        Ok(Dry { ledger, meter: Meter::default(), profile, _fixed: fixed })
    }

    fn lease(&self, place: Place, category: Category, bytes: u64) -> Result<Lease> {
        let bytes = bytes.next_multiple_of(self.profile.granularity);
        Ok(self.ledger.lease(place, category, bytes).map_err(|refusal| *refusal)?)
    }
}

impl Buffer for DryBuffer {
    fn elements(&self) -> usize {
        self.elements
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn recategorize(&mut self, category: Category) {
        self.lease.recategorize(category);
    }
}

impl SharedMat for DryShared {
    fn copy_from(&self, _: &Self) -> Result<()> {
        Ok(())
    }
    fn add_from(&self, _: &Self) -> Result<()> {
        Ok(())
    }
}

type M<'a> = Mat<'a, DryBuffer>;

impl Device for Dry {
    type Buffer = DryBuffer;
    type Shared = DryShared;
    type Event = ();

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
    fn meter(&self) -> &Meter {
        &self.meter
    }
    fn compute_dtype(&self) -> DType {
        self.profile.compute_dtype
    }

    fn allocate(&self, place: Place, category: Category, dtype: DType, elements: usize) -> Result<DryBuffer> {
        let lease = self.lease(place, category, elements as u64 * dtype.bytes())?;
        Ok(DryBuffer { elements, dtype, lease })
    }
    fn upload_ids(&self, category: Category, ids: &[u32]) -> Result<DryBuffer> {
        self.allocate(Place::Device, category, DType::U32, ids.len())
    }
    fn write(&self, _: &[f32], _: &DryBuffer) -> Result<()> {
        Ok(())
    }
    fn initialize(&self, _: &DryBuffer, _: &mut dyn FnMut(&mut [f32]) -> Result<()>) -> Result<()> {
        Ok(())
    }
    fn read(&self, _: &DryBuffer) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }

    fn record(&self, _: Lane) -> Result<()> {
        Ok(())
    }
    fn wait(&self, _: Lane, _: &()) -> Result<()> {
        Ok(())
    }
    fn enqueue(&self, _: Lane, _: Job) -> Result<()> {
        Ok(())
    }
    fn share(&self, _: M) -> DryShared {
        DryShared
    }

    fn copy(&self, lane: Lane, source: M, destination: M) -> Result<()> {
        self.meter.copy(lane, source, destination);
        Ok(())
    }
    fn fill(&self, out: M, _: f32) -> Result<()> {
        self.meter.rowwise(&[out]);
        Ok(())
    }
    fn add(&self, x: M, out: M) -> Result<()> {
        self.meter.rowwise(&[x, out, out]);
        Ok(())
    }
    fn matmul(&self, a: M, trans_a: bool, b: M, trans_b: bool, c: M, _: bool) -> Result<()> {
        self.meter.matmul(a, trans_a, b, trans_b, c);
        Ok(())
    }
    fn embedding(&self, _: &DryBuffer, _: usize, _: M, out: M) -> Result<()> {
        self.meter.rowwise(&[out, out]);
        Ok(())
    }
    fn embedding_backward(&self, _: &DryBuffer, _: usize, d_out: M, _: M) -> Result<()> {
        self.meter.rowwise(&[d_out, d_out, d_out]);
        Ok(())
    }
    fn rms_norm(&self, x: M, _: M, _: f64, out: M) -> Result<()> {
        self.meter.rowwise(&[x, out]);
        Ok(())
    }
    fn rms_norm_backward(&self, x: M, _: M, _: f64, dy: M, dx: M, _: M) -> Result<()> {
        self.meter.rowwise(&[x, dy, dx, dx]);
        Ok(())
    }
    fn rope_table(&self, _: &[f64], _: &[u32], _: f64, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn head_norm_rope(&self, op: &HeadNormRope<DryBuffer>, x: M) -> Result<()> {
        self.meter.rowwise(&[x, x, op.cos, op.sin]);
        Ok(())
    }
    fn head_norm_rope_backward(&self, op: &HeadNormRope<DryBuffer>, x: M, dy: M, _: Option<M>) -> Result<()> {
        self.meter.rowwise(&[x, dy, dy, op.cos, op.sin]);
        Ok(())
    }
    fn attention(&self, shape: &AttentionShape, q: M, k: M, v: M, _: M, lse: M) -> Result<()> {
        self.meter.attention(shape, q, k, v, lse);
        Ok(())
    }
    fn attention_backward(
        &self,
        shape: &AttentionShape,
        q: M,
        k: M,
        v: M,
        _: M,
        _: M,
        lse: M,
        _: AttentionGradients<DryBuffer>,
    ) -> Result<()> {
        let scratch = (self.profile.attention_backward_scratch)(shape, q.rows, k.rows);
        let _scratch = self.lease(Place::Device, Category::Scratch, scratch)?;
        self.meter.attention_backward(shape, q, k, v, lse);
        Ok(())
    }
    fn attention_merge(&self, _: usize, o: M, _: M, o_block: M, _: M) -> Result<()> {
        self.meter.rowwise(&[o_block, o, o]);
        Ok(())
    }
    fn swiglu(&self, gate: M, up: M, out: M) -> Result<()> {
        self.meter.rowwise(&[gate, up, out]);
        Ok(())
    }
    fn swiglu_backward(&self, gate: M, up: M, d_out: M) -> Result<()> {
        self.meter.rowwise(&[gate, gate, up, up, d_out]);
        Ok(())
    }
    fn cross_entropy_in_place(&self, logits: M, _: &DryBuffer, _: usize, _: f32, _: M) -> Result<()> {
        self.meter.rowwise(&[logits, logits, logits]);
        Ok(())
    }
    fn log_softmax(&self, logits: M, out: M) -> Result<()> {
        self.meter.rowwise(&[logits, logits, out]);
        Ok(())
    }
    fn nll(&self, log_probabilities: M, _: &DryBuffer, _: f32, d_logits: M, _: M) -> Result<()> {
        self.meter.rowwise(&[log_probabilities, d_logits]);
        Ok(())
    }
    fn sum_squares(&self, x: &DryBuffer) -> Result<f64> {
        self.meter.rowwise(&[Mat::flat(x)]);
        Ok(0.0)
    }
    fn adamw(&self, _: &AdamW, state: AdamWState<DryBuffer>) -> Result<()> {
        self.meter.update(&state);
        Ok(())
    }
}
