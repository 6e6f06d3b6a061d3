//! CPU buffers: candle-core tensors under a lease, reached as slices.

use anyhow::{Result, anyhow, ensure};
use candle_core::{CpuStorage, InplaceOp1, Layout, Storage, Tensor, WithDType};
use half::bf16;

use super::kernels::{Rows, RowsMut};
use crate::device::{Buffer, DType, Mat, SharedMat};
use crate::memory::category::Category;
use crate::memory::ledger::Lease;

/// A flat candle tensor under a lease. Its memory is filled with NaN when it is
/// taken and when it is given back, so that a missing write or a missing wait shows.
pub struct CpuBuffer {
    pub(super) tensor: Tensor,
    pub(super) dtype: DType,
    lease: Lease,
}

impl CpuBuffer {
    pub(super) fn new(tensor: Tensor, dtype: DType, lease: Lease) -> CpuBuffer {
        CpuBuffer { tensor, dtype, lease }
    }
}

impl Buffer for CpuBuffer {
    fn elements(&self) -> usize {
        self.tensor.elem_count()
    }
    fn dtype(&self) -> DType {
        self.dtype
    }
    fn recategorize(&mut self, category: Category) {
        self.lease.recategorize(category);
    }
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        if self.dtype == DType::F32 {
            // A poisoned tensor is never read again unless something is wrong.
            let _ = mutate::<f32>(&self.tensor, |values| values.fill(f32::NAN));
        }
    }
}

/// A view that keeps its tensor alive, for other threads.
#[derive(Clone)]
pub struct CpuShared {
    tensor: Tensor,
    offset: usize,
    rows: usize,
    cols: usize,
    stride: usize,
}

impl CpuShared {
    pub(super) fn of(mat: Mat<CpuBuffer>) -> CpuShared {
        let Mat { buffer, offset, rows, cols, stride } = mat;
        CpuShared { tensor: buffer.tensor.clone(), offset, rows, cols, stride }
    }

    fn combine(&self, source: &CpuShared, op: impl Fn(&mut [f32], &[f32])) -> Result<()> {
        ensure!(self.rows == source.rows && self.cols == source.cols, "an exchange between views of different shapes");
        let from = (source.offset, source.rows, source.cols, source.stride);
        let to = (self.offset, self.rows, self.cols, self.stride);
        read::<f32, _>(&source.tensor, |values| {
            let from = rows(values, from);
            mutate::<f32>(&self.tensor, |values| {
                let mut to = rows_mut(values, to);
                for i in 0..from.rows {
                    op(to.row_mut(i), from.row(i));
                }
            })
        })?
    }
}

impl SharedMat for CpuShared {
    fn copy_from(&self, source: &Self) -> Result<()> {
        self.combine(source, |to, from| to.copy_from_slice(from))
    }
    fn add_from(&self, source: &Self) -> Result<()> {
        self.combine(source, |to, from| to.iter_mut().zip(from).for_each(|(t, f)| *t += f))
    }
}

/// Offset, rows, columns, stride.
type Place = (usize, usize, usize, usize);

fn end((offset, rows, cols, stride): Place) -> usize {
    if rows == 0 { offset } else { offset + (rows - 1) * stride + cols }
}

pub(super) fn place(mat: &Mat<CpuBuffer>) -> Place {
    (mat.offset, mat.rows, mat.cols, mat.stride)
}

pub(super) fn rows(values: &[f32], place: Place) -> Rows<'_> {
    Rows::new(&values[place.0..end(place)], place.1, place.2, place.3)
}

pub(super) fn rows_mut(values: &mut [f32], place: Place) -> RowsMut<'_> {
    let end = end(place);
    RowsMut::new(&mut values[place.0..end], place.1, place.2, place.3)
}

/// Reads a tensor's memory.
pub(super) fn read<T: WithDType, R>(tensor: &Tensor, f: impl FnOnce(&[T]) -> R) -> Result<R> {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(cpu) => Ok(f(cpu.as_slice::<T>()?)),
        _ => Err(anyhow!("a CPU buffer holds a tensor of another device")),
    }
}

/// An element type that buffers have.
pub(super) trait Element: WithDType {
    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

impl Element for f32 {
    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [f32]> {
        if let CpuStorage::F32(values) = storage { Some(values) } else { None }
    }
}

impl Element for bf16 {
    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [bf16]> {
        if let CpuStorage::BF16(values) = storage { Some(values) } else { None }
    }
}

impl Element for u32 {
    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [u32]> {
        if let CpuStorage::U32(values) = storage { Some(values) } else { None }
    }
}

/// Writes to a tensor's memory, through candle's in-place operation.
pub(super) fn mutate<T: Element>(tensor: &Tensor, f: impl FnOnce(&mut [T])) -> Result<()> {
    struct Write<F, T>(std::cell::Cell<Option<F>>, std::marker::PhantomData<T>);
    impl<T: Element, F: FnOnce(&mut [T])> InplaceOp1 for Write<F, T> {
        fn name(&self) -> &'static str {
            "write"
        }
        fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> candle_core::Result<()> {
            let values = T::slice_mut(storage).ok_or_else(|| candle_core::Error::msg("another element type"))?;
            if let Some(f) = self.0.take() {
                f(values);
            }
            Ok(())
        }
    }
    Ok(tensor.inplace_op1(&Write(std::cell::Cell::new(Some(f)), std::marker::PhantomData))?)
}

/// Runs `f` over the f32 views `reads` and `writes`. The written buffers must
/// differ from each other and from those read.
pub(super) fn over(
    reads: &[Mat<CpuBuffer>],
    writes: &[Mat<CpuBuffer>],
    f: impl FnOnce(&[Rows], Vec<RowsMut>),
) -> Result<()> {
    for (i, write) in writes.iter().enumerate() {
        let others = reads.iter().chain(&writes[i + 1..]);
        for other in others {
            assert!(!std::ptr::eq(write.buffer, other.buffer), "an operation writes to a buffer that it also uses");
        }
    }
    let guards: Vec<_> = reads.iter().map(|m| m.buffer.tensor.storage_and_layout().0).collect();
    let mut views = Vec::with_capacity(reads.len());
    for (guard, mat) in guards.iter().zip(reads) {
        let Storage::Cpu(cpu) = &**guard else { return Err(anyhow!("a CPU buffer holds a tensor of another device")) };
        views.push(rows(cpu.as_slice::<f32>()?, place(mat)));
    }
    let mut f = Some(f);
    nest(writes, Vec::new(), &mut |out| {
        if let Some(f) = f.take() {
            f(&views, out);
        }
    })
}

fn nest(writes: &[Mat<CpuBuffer>], got: Vec<RowsMut>, f: &mut dyn FnMut(Vec<RowsMut>)) -> Result<()> {
    let Some((first, rest)) = writes.split_first() else {
        f(got);
        return Ok(());
    };
    let mut result = Ok(());
    let inner = &mut result;
    mutate::<f32>(&first.buffer.tensor, move |values| {
        let mut got = got;
        got.push(rows_mut(values, place(first)));
        *inner = nest(rest, got, f);
    })?;
    result
}
