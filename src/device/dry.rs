//! The dry device: shapes alone. It runs the very step that will run, computes
//! nothing, and leaves the ledger and the meter as that step would.

use std::sync::Arc;

use anyhow::Result;

use super::*;
use crate::memory::ledger::{Lease, ProcessTotal};

/// A device that only keeps the books. It stands for a device of `compute_dtype`.
pub struct Dry {
    ledger: Ledger,
    meter: Meter,
    compute_dtype: DType,
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
    /// `budget`: bytes that the rank may hold on its device.
    pub fn new(budget: Option<u64>, compute_dtype: DType) -> Dry {
        let ledger = Ledger::new(budget, Arc::new(ProcessTotal::default()));
        Dry { ledger, meter: Meter::default(), compute_dtype }
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
        self.compute_dtype
    }

    fn allocate(&self, place: Place, category: Category, dtype: DType, elements: usize) -> Result<DryBuffer> {
        let lease = self.ledger.lease(place, category, elements as u64 * dtype.bytes()).map_err(|refusal| *refusal)?;
        Ok(DryBuffer { elements, dtype, lease })
    }
    fn upload_ids(&self, category: Category, ids: &[u32]) -> Result<DryBuffer> {
        self.allocate(Place::Device, category, DType::U32, ids.len())
    }
    fn write(&self, _: &[f32], _: &DryBuffer) -> Result<()> {
        Ok(())
    }
    fn read(&self, buffer: &DryBuffer) -> Result<Vec<f32>> {
        Ok(vec![0.0; buffer.elements])
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
    fn fill(&self, _: M, _: f32) -> Result<()> {
        Ok(())
    }
    fn add(&self, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn matmul(&self, a: M, trans_a: bool, b: M, trans_b: bool, c: M, _: bool) -> Result<()> {
        self.meter.matmul(a, trans_a, b, trans_b, c);
        Ok(())
    }
    fn embedding(&self, _: &DryBuffer, _: usize, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn embedding_backward(&self, _: &DryBuffer, _: usize, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn rms_norm(&self, _: M, _: M, _: f64, _: M) -> Result<()> {
        Ok(())
    }
    fn rms_norm_backward(&self, _: M, _: M, _: f64, _: M, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn rope_table(&self, _: &[f64], _: &[u32], _: f64, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn head_norm_rope(&self, _: &HeadNormRope<DryBuffer>, _: M) -> Result<()> {
        Ok(())
    }
    fn head_norm_rope_backward(&self, _: &HeadNormRope<DryBuffer>, _: M, _: M, _: Option<M>) -> Result<()> {
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
        let delta = cpu::attention_backward_scratch(shape, q.rows);
        let _delta = self.allocate(Place::Device, Category::Scratch, DType::F32, delta)?;
        self.meter.attention_backward(shape, q, k, v, lse);
        Ok(())
    }
    fn attention_merge(&self, _: usize, _: M, _: M, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn swiglu(&self, _: M, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn swiglu_backward(&self, _: M, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn cross_entropy_in_place(&self, _: M, _: &DryBuffer, _: usize, _: f32, _: M) -> Result<()> {
        Ok(())
    }
    fn log_softmax(&self, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn nll(&self, _: M, _: &DryBuffer, _: f32, _: M, _: M) -> Result<()> {
        Ok(())
    }
    fn sum_squares(&self, _: &DryBuffer) -> Result<f64> {
        Ok(0.0)
    }
    fn adamw(&self, _: &AdamW, _: AdamWState<DryBuffer>) -> Result<()> {
        Ok(())
    }
}
