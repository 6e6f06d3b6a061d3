//! CPU kernels over strided f32 matrices, one operation a file, forward beside backward.
//!
//! Work is cut into blocks of a fixed size and sums run over blocks in order, so that
//! a result does not depend on the number of threads, nor a row's result on how many
//! other rows are in the call.

mod adamw;
mod attention;
mod embedding;
mod loss;
mod matmul;
mod norm;
mod rope;
mod simd;
mod swiglu;
#[cfg(test)]
mod tests;

pub use adamw::{adamw_bf16, adamw_f32, sum_squares};
pub use attention::{attention_backward, attention_forward, merge};
pub use embedding::{embedding, embedding_backward};
pub use loss::{cross_entropy_in_place, log_softmax, nll_and_gradient};
pub use matmul::matmul;
pub use norm::{rms_norm, rms_norm_backward};
pub use rope::{head_norm_rope, head_norm_rope_backward, rope_table};
pub use swiglu::{swiglu, swiglu_backward};

use rayon::prelude::*;

/// Rows that one task takes.
const BLOCK: usize = 64;

/// A matrix to read: row i is `data[i * stride..][..cols]`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

/// A matrix to write.
pub struct RowsMut<'a> {
    pub data: &'a mut [f32],
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

fn check(length: usize, rows: usize, cols: usize, stride: usize) {
    assert!(stride >= cols, "rows of {cols} that are {stride} apart");
    assert!(rows == 0 || length >= (rows - 1) * stride + cols, "a matrix beyond its memory");
}

impl<'a> Rows<'a> {
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        Rows { data, rows, cols, stride }
    }

    /// One row.
    pub fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride..][..self.cols]
    }

    /// Rows `from..to`.
    pub fn part(&self, from: usize, to: usize) -> Rows<'a> {
        let data = if from < to { &self.data[from * self.stride..(to - 1) * self.stride + self.cols] } else { &[] };
        Rows { data, rows: to - from, ..*self }
    }
}

impl<'a> RowsMut<'a> {
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data.len(), rows, cols, stride);
        RowsMut { data, rows, cols, stride }
    }

    /// One row.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.stride..][..self.cols]
    }

    /// One row.
    pub fn row_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.data[i * self.stride..][..self.cols]
    }

    /// The same matrix for a shorter time.
    pub fn reborrow(&mut self) -> RowsMut<'_> {
        RowsMut { data: self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// The matrix as blocks of `size` rows each (the last may be shorter; one under
    /// `shortest` rows joins the block before), with the first row of each.
    fn blocks(self, size: usize, shortest: usize) -> Vec<(usize, RowsMut<'a>)> {
        let (cols, stride) = (self.cols, self.stride);
        let (mut rest, mut start, mut blocks) = (self.data, 0, Vec::new());
        while start < self.rows {
            let left = self.rows - start;
            let rows = if left < size + shortest { left } else { size };
            let cut = if rows == left { rest.len() } else { rows * stride };
            let (data, tail) = rest.split_at_mut(cut);
            blocks.push((start, RowsMut { data, rows, cols, stride }));
            (rest, start) = (tail, start + rows);
        }
        blocks
    }
}

/// out ← out + x.
pub fn add(mut out: RowsMut, x: Rows) {
    assert!(out.rows == x.rows && out.cols == x.cols, "add: shapes differ");
    for i in 0..x.rows {
        out.row_mut(i).iter_mut().zip(x.row(i)).for_each(|(o, x)| *o += x);
    }
}

/// `f` of each item, computed on the pool's threads alone: a caller that helped out
/// would take the matrix library's workspace (2 MiB a thread) once more.
fn map<T: Send, R: Send>(items: Vec<T>, f: impl Fn(T) -> R + Sync + Send) -> Vec<R> {
    rayon::join(|| items.into_par_iter().map(f).collect(), || ()).0
}

/// Runs `f` on each item; see [`map`].
fn each<T: Send>(items: Vec<T>, f: impl Fn(T) + Sync + Send) {
    map(items, f);
}

/// Takes the matrix library's workspace on every thread of the pool, so that no run is
/// charged for it.
pub fn warm_up() {
    rayon::broadcast(|_| {
        let ones = vec![1.0; 128 * 128];
        let (mut c, view) = (vec![0.0; 128 * 128], Rows::new(&ones, 128, 128, 128));
        matmul::product(view, false, view, true, RowsMut::new(&mut c, 128, 128, 128), false);
        matmul::product(view, true, view, false, RowsMut::new(&mut c, 128, 128, 128), false);
    });
}

/// Sums `partial(block)` of each block of rows into `out`, in the order of blocks.
fn sum_blocks(rows: usize, out: &mut [f32], partial: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync) {
    let width = out.len();
    let starts: Vec<usize> = (0..rows).step_by(BLOCK).collect();
    // A few blocks at a time bound the scratch.
    for group in starts.chunks(16) {
        let partials = map(group.to_vec(), |start| {
            let mut sum = vec![0.0; width];
            partial(start..(start + BLOCK).min(rows), &mut sum);
            sum
        });
        for partial in partials {
            out.iter_mut().zip(partial).for_each(|(o, p)| *o += p);
        }
    }
}
