//! The embedding: rows of a table, and back.

use super::{BLOCK, Rows, RowsMut, each};

/// out [tokens, hidden] ← rows of `table` [vocabulary, hidden].
pub fn embedding(ids: &[u32], table: Rows, out: RowsMut) {
    assert!(ids.len() == out.rows && table.cols == out.cols, "embedding: shapes differ");
    each(out.blocks(BLOCK, 0), |(start, mut out)| {
        for i in 0..out.rows {
            out.row_mut(i).copy_from_slice(table.row(ids[start + i] as usize));
        }
    });
}

/// d_table += rows of `d_out`, in the order of tokens.
pub fn embedding_backward(ids: &[u32], d_out: Rows, mut d_table: RowsMut) {
    assert!(ids.len() == d_out.rows && d_table.cols == d_out.cols, "embedding: shapes differ");
    for (i, id) in ids.iter().enumerate() {
        d_table.row_mut(*id as usize).iter_mut().zip(d_out.row(i)).for_each(|(t, d)| *t += d);
    }
}
