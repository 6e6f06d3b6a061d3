//! Matrix products, by the gemm crate.

use super::{BLOCK, Rows, RowsMut, each};

/// The library takes another path, whose sums differ, where m·n ≤ 256.
const SHORTEST: usize = 32;

/// Inner elements that one call sums over. The library cuts longer sums in pieces
/// whose length depends on m and n; cut here, a row's sum is the same in any tile.
const INNER: usize = 256;

/// One product in the calling thread: c (+)= op(a) · op(b).
pub(super) fn product(a: Rows, trans_a: bool, b: Rows, trans_b: bool, mut c: RowsMut, accumulate: bool) {
    let k = if trans_a { a.rows } else { a.cols };
    if k <= INNER {
        return product_of(a, trans_a, b, trans_b, c, accumulate);
    }
    for from in (0..k).step_by(INNER) {
        let to = (from + INNER).min(k);
        let (a, b) = (inner(a, trans_a, from, to), inner(b, !trans_b, from, to));
        product_of(a, trans_a, b, trans_b, c.reborrow(), accumulate || from > 0);
    }
}

/// Rows or columns `from..to` of an operand.
fn inner(x: Rows, by_rows: bool, from: usize, to: usize) -> Rows {
    if by_rows { x.part(from, to) } else { Rows { data: &x.data[from..], cols: to - from, ..x } }
}

/// One call of the library.
fn product_of(a: Rows, trans_a: bool, b: Rows, trans_b: bool, c: RowsMut, accumulate: bool) {
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
    each(c.blocks(BLOCK, SHORTEST), |(start, c)| {
        let a =
            if trans_a { Rows { data: &a.data[start..], cols: c.rows, ..a } } else { a.part(start, start + c.rows) };
        product(a, trans_a, b, trans_b, c, accumulate);
    });
}
