//! The CPU device: f32 throughout, candle-core tensors as memory, our kernels on
//! slices. It is the slow, clear truth that other devices are held to.

pub mod kernels;
mod lanes;
mod storage;

use std::sync::Arc;

use anyhow::{Result, ensure};
use candle_core::Tensor;
use half::bf16;

use self::kernels as k;
pub use self::lanes::CpuEvent;
pub use self::storage::{CpuBuffer, CpuShared};
use self::storage::{mutate, over, read};
use super::*;
use crate::memory::ledger::ProcessTotal;

/// One rank's CPU device.
pub struct Cpu {
    ledger: Ledger,
    meter: Meter,
    lanes: lanes::Lanes,
}

impl Cpu {
    /// `budget`: bytes that the rank may hold; `process`: all ranks of the process together.
    pub fn new(budget: Option<u64>, process: Arc<ProcessTotal>) -> Cpu {
        Cpu { ledger: Ledger::new(budget, process), meter: Meter::default(), lanes: Default::default() }
    }
}

type M<'a> = Mat<'a, CpuBuffer>;

/// f32 elements that attention's backward needs beside its operands: Σ dO·O of each row and head.
pub(super) fn attention_backward_scratch(shape: &AttentionShape, q_rows: usize) -> usize {
    shape.heads * q_rows
}

impl Device for Cpu {
    type Buffer = CpuBuffer;
    type Shared = CpuShared;
    type Event = CpuEvent;

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
    fn meter(&self) -> &Meter {
        &self.meter
    }
    fn compute_dtype(&self) -> DType {
        DType::F32
    }

    fn allocate(&self, place: Place, category: Category, dtype: DType, elements: usize) -> Result<CpuBuffer> {
        let lease = self.ledger.lease(place, category, elements as u64 * dtype.bytes()).map_err(|refusal| *refusal)?;
        let cpu = &candle_core::Device::Cpu;
        let tensor = match dtype {
            DType::F32 => Tensor::from_vec(vec![f32::NAN; elements], elements, cpu)?,
            DType::Bf16 => Tensor::from_vec(vec![bf16::NAN; elements], elements, cpu)?,
            DType::U32 => Tensor::from_vec(vec![IGNORED; elements], elements, cpu)?,
        };
        Ok(CpuBuffer::new(tensor, dtype, lease))
    }

    fn upload_ids(&self, category: Category, ids: &[u32]) -> Result<CpuBuffer> {
        let buffer = self.allocate(Place::Device, category, DType::U32, ids.len())?;
        mutate::<u32>(&buffer.tensor, |out| out.copy_from_slice(ids))?;
        Ok(buffer)
    }

    fn write(&self, values: &[f32], out: &CpuBuffer) -> Result<()> {
        ensure!(values.len() == out.elements(), "write: {} values for {} elements", values.len(), out.elements());
        match out.dtype {
            DType::Bf16 => {
                mutate::<bf16>(&out.tensor, |o| o.iter_mut().zip(values).for_each(|(o, v)| *o = bf16::from_f32(*v)))
            }
            _ => mutate::<f32>(&out.tensor, |o| o.copy_from_slice(values)),
        }
    }

    fn read(&self, buffer: &CpuBuffer) -> Result<Vec<f32>> {
        match buffer.dtype {
            DType::Bf16 => read::<bf16, _>(&buffer.tensor, |x| x.iter().map(|x| x.to_f32()).collect()),
            _ => read::<f32, _>(&buffer.tensor, |x| x.to_vec()),
        }
    }

    fn record(&self, lane: Lane) -> Result<CpuEvent> {
        self.lanes.record(lane)
    }
    fn wait(&self, lane: Lane, event: &CpuEvent) -> Result<()> {
        self.lanes.wait(lane, event)
    }
    fn enqueue(&self, lane: Lane, job: Job) -> Result<()> {
        self.lanes.enqueue(lane, job)
    }
    fn share(&self, mat: M) -> CpuShared {
        CpuShared::of(mat)
    }

    fn copy(&self, lane: Lane, source: M, destination: M) -> Result<()> {
        self.meter.copy(lane, source, destination);
        let (source, destination) = (self.share(source), self.share(destination));
        self.enqueue(lane, Box::new(move || destination.copy_from(&source)))
    }

    fn fill(&self, out: M, value: f32) -> Result<()> {
        self.meter.rowwise(&[out]);
        over(&[], &[out], |_, mut w| {
            for i in 0..w[0].rows {
                w[0].row_mut(i).fill(value);
            }
        })
    }

    fn add(&self, x: M, out: M) -> Result<()> {
        self.meter.rowwise(&[x, out, out]);
        over(&[x], &[out], |r, w| with(w, |[out]| k::add(out, r[0])))
    }

    fn matmul(&self, a: M, trans_a: bool, b: M, trans_b: bool, c: M, accumulate: bool) -> Result<()> {
        self.meter.matmul(a, trans_a, b, trans_b, c);
        over(&[a, b], &[c], |r, w| with(w, |[c]| k::matmul(r[0], trans_a, r[1], trans_b, c, accumulate)))
    }

    fn embedding(&self, ids: &CpuBuffer, first: usize, table: M, out: M) -> Result<()> {
        self.meter.rowwise(&[out, out]);
        read::<u32, _>(&ids.tensor, |ids| {
            let ids = &ids[first..first + out.rows];
            over(&[table], &[out], |r, w| with(w, |[out]| k::embedding(ids, r[0], out)))
        })?
    }

    fn embedding_backward(&self, ids: &CpuBuffer, first: usize, d_out: M, d_table: M) -> Result<()> {
        self.meter.rowwise(&[d_out, d_out, d_out]);
        read::<u32, _>(&ids.tensor, |ids| {
            let ids = &ids[first..first + d_out.rows];
            over(&[d_out], &[d_table], |r, w| with(w, |[d_table]| k::embedding_backward(ids, r[0], d_table)))
        })?
    }

    fn rms_norm(&self, x: M, weight: M, eps: f64, out: M) -> Result<()> {
        self.meter.rowwise(&[x, out]);
        over(&[x, weight], &[out], |r, w| with(w, |[out]| k::rms_norm(r[0], r[1].row(0), eps as f32, out)))
    }

    fn rms_norm_backward(&self, x: M, weight: M, eps: f64, dy: M, dx: M, d_weight: M) -> Result<()> {
        self.meter.rowwise(&[x, dy, dx, dx]);
        over(&[x, weight, dy], &[dx, d_weight], |r, w| {
            with(w, |[dx, mut dw]| k::rms_norm_backward(r[0], r[1].row(0), eps as f32, r[2], dx, dw.row_mut(0)))
        })
    }

    fn rope_table(
        &self,
        inverse_frequencies: &[f64],
        positions: &[u32],
        attention_scaling: f64,
        cos: M,
        sin: M,
    ) -> Result<()> {
        over(&[], &[cos, sin], |_, w| {
            with(w, |[cos, sin]| k::rope_table(inverse_frequencies, positions, attention_scaling, cos, sin))
        })
    }

    fn head_norm_rope(&self, op: &HeadNormRope<CpuBuffer>, x: M) -> Result<()> {
        self.meter.rowwise(&[x, x, op.cos, op.sin]);
        let (eps, d) = (op.eps as f32, op.head_dim);
        over(&[op.cos, op.sin, op.weight.unwrap_or(op.cos)], &[x], |r, w| {
            let weight = op.weight.is_some().then(|| r[2].row(0));
            with(w, |[x]| k::head_norm_rope(x, weight, eps, r[0], r[1], d))
        })
    }

    fn head_norm_rope_backward(&self, op: &HeadNormRope<CpuBuffer>, x: M, dy: M, d_weight: Option<M>) -> Result<()> {
        self.meter.rowwise(&[x, dy, dy, op.cos, op.sin]);
        let (eps, d) = (op.eps as f32, op.head_dim);
        let reads = [x, op.cos, op.sin, op.weight.unwrap_or(op.cos)];
        let writes = [Some(dy), d_weight];
        let writes: Vec<M> = writes.into_iter().flatten().collect();
        over(&reads, &writes, |r, mut w| {
            let weight = op.weight.is_some().then(|| r[3].row(0));
            let (dy, dw) = w.split_at_mut(1);
            let dw = dw.first_mut().map(|dw| dw.row_mut(0));
            k::head_norm_rope_backward(r[0], weight, eps, r[1], r[2], d, dy[0].reborrow(), dw);
        })
    }

    fn attention(&self, shape: &AttentionShape, q: M, k: M, v: M, o: M, lse: M) -> Result<()> {
        self.meter.attention(shape, q, k, v, lse);
        over(&[q, k, v], &[o, lse], |r, w| with(w, |[o, lse]| k::attention_forward(shape, r[0], r[1], r[2], o, lse)))
    }

    fn attention_backward(
        &self,
        shape: &AttentionShape,
        q: M,
        k: M,
        v: M,
        o: M,
        d_o: M,
        lse: M,
        out: AttentionGradients<CpuBuffer>,
    ) -> Result<()> {
        self.meter.attention_backward(shape, q, k, v, lse);
        let delta = attention_backward_scratch(shape, q.rows);
        let delta = self.allocate(Place::Device, Category::Scratch, DType::F32, delta)?;
        let accumulate = out.accumulate;
        over(&[q, k, v, o, d_o, lse], &[out.dq, out.dk, out.dv, Mat::flat(&delta)], |r, w| {
            with(w, |[dq, dk, dv, mut delta]| {
                let delta = delta.row_mut(0);
                k::attention_backward(shape, r[0], r[1], r[2], r[3], r[4], r[5], delta, dq, dk, dv, accumulate)
            })
        })
    }

    fn attention_merge(&self, head_dim: usize, o: M, lse: M, o_block: M, lse_block: M) -> Result<()> {
        self.meter.rowwise(&[o_block, o, o]);
        over(&[o_block, lse_block], &[o, lse], |r, w| with(w, |[o, lse]| k::merge(o, lse, r[0], r[1], head_dim)))
    }

    fn swiglu(&self, gate: M, up: M, out: M) -> Result<()> {
        self.meter.rowwise(&[gate, up, out]);
        over(&[gate, up], &[out], |r, w| with(w, |[out]| k::swiglu(r[0], r[1], out)))
    }

    fn swiglu_backward(&self, gate: M, up: M, d_out: M) -> Result<()> {
        self.meter.rowwise(&[gate, gate, up, up, d_out]);
        over(&[d_out], &[gate, up], |r, w| with(w, |[gate, up]| k::swiglu_backward(gate, up, r[0])))
    }

    fn cross_entropy_in_place(
        &self,
        logits: M,
        targets: &CpuBuffer,
        first: usize,
        scale: f32,
        losses: M,
    ) -> Result<()> {
        self.meter.rowwise(&[logits, logits, logits]);
        read::<u32, _>(&targets.tensor, |targets| {
            let targets = &targets[first..first + logits.rows];
            over(&[], &[logits, losses], |_, w| {
                with(w, |[logits, mut losses]| k::cross_entropy_in_place(logits, targets, scale, losses.row_mut(0)))
            })
        })?
    }

    fn log_softmax(&self, logits: M, out: M) -> Result<()> {
        self.meter.rowwise(&[logits, logits, out]);
        over(&[logits], &[out], |r, w| with(w, |[out]| k::log_softmax(r[0], out)))
    }

    fn nll(&self, log_probabilities: M, targets: &CpuBuffer, scale: f32, d_logits: M, losses: M) -> Result<()> {
        self.meter.rowwise(&[log_probabilities, d_logits]);
        read::<u32, _>(&targets.tensor, |targets| {
            over(&[log_probabilities], &[d_logits, losses], |r, w| {
                with(w, |[d_logits, mut losses]| k::nll_and_gradient(r[0], targets, scale, losses.row_mut(0), d_logits))
            })
        })?
    }

    fn sum_squares(&self, x: &CpuBuffer) -> Result<f64> {
        self.meter.rowwise(&[Mat::flat(x)]);
        read::<f32, _>(&x.tensor, k::sum_squares)
    }

    fn adamw(&self, update: &AdamW, state: AdamWState<CpuBuffer>) -> Result<()> {
        self.meter.update(&state);
        let AdamWState { weights, gradients, first_moment: m, second_moment: v } = state;
        if m.dtype == DType::F32 {
            return over(&[Mat::flat(gradients)], &[Mat::flat(weights), Mat::flat(m), Mat::flat(v)], |r, w| {
                with(w, |[mut w, mut m, mut v]| {
                    k::adamw_f32(update, w.row_mut(0), r[0].row(0), m.row_mut(0), v.row_mut(0))
                })
            });
        }
        let (mut result, mut inner) = (Ok(()), Ok(()));
        mutate::<bf16>(&m.tensor, |m| {
            result = mutate::<bf16>(&v.tensor, |v| {
                inner = over(&[Mat::flat(gradients)], &[Mat::flat(weights)], |r, w| {
                    with(w, |[mut w]| k::adamw_bf16(update, w.row_mut(0), r[0].row(0), m, v))
                });
            });
        })?;
        result.and(inner)
    }
}

/// Takes the written views apart.
fn with<const N: usize>(writes: Vec<k::RowsMut>, f: impl FnOnce([k::RowsMut; N])) {
    match <[k::RowsMut; N]>::try_from(writes) {
        Ok(writes) => f(writes),
        Err(writes) => unreachable!("{} views where {N} were asked for", writes.len()),
    }
}
