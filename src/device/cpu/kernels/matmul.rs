//! Matrix products, by the gemm crate.

use rayon::prelude::*;

use super::{BLOCK, Rows, RowsMut};

/// Blocks under this many rows take other paths in the library, whose sums differ.
const SHORTEST: usize = 16;

/// One product in the calling thread: c (+)= op(a) · op(b).
pub(super) fn product(a: Rows, trans_a: bool, b: Rows, trans_b: bool, c: RowsMut, accumulate: bool) {
    let (m, k) = if trans_a { (a.cols, a.rows) } else { (a.rows, a.cols) };
    let n = if trans_b { b.rows } else { b.cols };
    let strides = |x: &Rows, trans: bool| {
        let (column, row) = (1, x.stride as isize);
        if trans { (row, column) } else { (column, row) }
    };
    let ((a_cs, a_rs), (b_cs, b_rs)) = (strides(&a, trans_a), strides(&b, trans_b));
    assert!(c.rows == m && c.cols == n, "matmul: the result is [{}, {}], not [{m}, {n}]", c.rows, c.cols);
    // SAFETY: `Rows` and `RowsMut` checked that every element of the three matrices,
    // under these strides, lies within their slices; c is borrowed mutably, so it
    // overlaps neither a nor b.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.data.as_mut_ptr(),
            1,
            c.stride as isize,
            accumulate,
            a.data.as_ptr(),
            a_cs,
            a_rs,
            b.data.as_ptr(),
            b_cs,
            b_rs,
            1.0f32,
            1.0f32,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

/// c [m, n] (+)= op(a) [m, k] · op(b) [k, n]; `trans_*`: the operand is stored transposed.
pub fn matmul(a: Rows, trans_a: bool, b: Rows, trans_b: bool, c: RowsMut, accumulate: bool) {
    let k = if trans_a { a.rows } else { a.cols };
    assert!(k == if trans_b { b.cols } else { b.rows }, "matmul: inner sizes differ");
    c.blocks(BLOCK, SHORTEST).into_par_iter().for_each(|(start, c)| {
        let a =
            if trans_a { Rows { data: &a.data[start..], cols: c.rows, ..a } } else { a.part(start, start + c.rows) };
        product(a, trans_a, b, trans_b, c, accumulate);
    });
}
