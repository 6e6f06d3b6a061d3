//! A matrix view of a buffer: rows of `cols` elements, `stride` apart.

use std::ops::Range;

use super::Buffer;

/// A row-major view. It borrows its buffer; the content may still change, as on
/// any device: who reads and who writes is in each operation's contract.
#[derive(Debug)]
pub struct Mat<'a, B> {
    pub buffer: &'a B,
    /// Element of the buffer at row 0, column 0.
    pub offset: usize,
    pub rows: usize,
    pub cols: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

impl<B> Clone for Mat<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for Mat<'_, B> {}

impl<'a, B: Buffer> Mat<'a, B> {
    /// The whole buffer as [rows, cols].
    pub fn new(buffer: &'a B, rows: usize, cols: usize) -> Self {
        Mat::at(buffer, 0, rows, cols)
    }

    /// A part of the buffer, from `offset` on, as [rows, cols].
    pub fn at(buffer: &'a B, offset: usize, rows: usize, cols: usize) -> Self {
        assert!(offset + rows * cols <= buffer.elements(), "a view beyond its buffer");
        Mat { buffer, offset, rows, cols, stride: cols }
    }

    /// The whole buffer as one row.
    pub fn flat(buffer: &'a B) -> Self {
        Mat::new(buffer, 1, buffer.elements())
    }

    /// Some rows.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows {range:?} of {}", self.rows);
        Mat { offset: self.offset + range.start * self.stride, rows: range.len(), ..self }
    }

    /// Some columns.
    pub fn cols(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.cols, "columns {range:?} of {}", self.cols);
        Mat { offset: self.offset + range.start, cols: range.len(), ..self }
    }

    /// Bytes of the view.
    pub fn bytes(&self) -> u64 {
        self.elements() as u64 * self.buffer.dtype().bytes()
    }

    /// Number of elements in the view.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }
}
