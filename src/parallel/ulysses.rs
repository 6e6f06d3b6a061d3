//! Ulysses: heads are exchanged, so that each rank sees the whole sequence for its
//! own heads. Where there are more ranks than KV heads, a KV head goes to several
//! ranks and their gradients are summed.

use anyhow::Result;

use super::attention::{Attention, Output, Qkv};
use super::comm::Comm;
use crate::device::{AttentionGradients, AttentionShape, DType, Device, Lane, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::Place;

/// A rank's share of the heads.
struct Heads {
    /// Query heads of a rank.
    q: usize,
    /// KV heads of a rank.
    kv: usize,
    /// Ranks that share a KV head.
    replicas: usize,
}

fn heads(shape: &AttentionShape, ranks: usize) -> Heads {
    let kv = (shape.kv_heads / ranks).max(1);
    Heads { q: shape.heads / ranks, kv, replicas: (ranks * kv / shape.kv_heads).max(1) }
}

/// Exchanges [tokens, all heads] for [all tokens, heads of this rank]. `cols`: columns
/// of a rank's heads; `first(p)`: the first column that goes to rank p.
fn to_heads<D: Device, C: Comm<D>>(
    a: &Attention<D, C>,
    local: D::Buffer,
    local_cols: usize,
    cols: usize,
    first: impl Fn(usize) -> usize,
) -> Result<D::Buffer> {
    let (t, ranks) = (a.tokens, a.comm.ranks());
    let dtype = crate::device::Buffer::dtype(&local);
    let whole = a.device.allocate(Place::Device, Category::Communication, dtype, t * ranks * cols)?;
    let view = Mat::new(&local, t, local_cols);
    let send: Vec<_> = (0..ranks).map(|p| view.cols(first(p)..first(p) + cols)).collect();
    let receive: Vec<_> = (0..ranks).map(|p| Mat::new(&whole, t * ranks, cols).rows(p * t..(p + 1) * t)).collect();
    let event = a.comm.all_to_all(a.device, &send, &receive)?;
    a.device.wait(Lane::Compute, &event)?;
    Ok(whole)
}

/// The way back: [all tokens, heads of this rank] to [tokens, all heads] in `local`.
fn to_tokens<D: Device, C: Comm<D>>(
    a: &Attention<D, C>,
    whole: D::Buffer,
    cols: usize,
    local: Mat<D::Buffer>,
) -> Result<()> {
    let (t, ranks) = (a.tokens, a.comm.ranks());
    let send: Vec<_> = (0..ranks).map(|p| Mat::new(&whole, t * ranks, cols).rows(p * t..(p + 1) * t)).collect();
    let receive: Vec<_> = (0..ranks).map(|p| local.cols(p * cols..(p + 1) * cols)).collect();
    let event = a.comm.all_to_all(a.device, &send, &receive)?;
    a.device.wait(Lane::Compute, &event)
}

/// dK or dV on the way back: the replicas of each KV head come side by side and are summed.
fn kv_to_tokens<D: Device, C: Comm<D>>(a: &Attention<D, C>, heads: &Heads, whole: D::Buffer) -> Result<D::Buffer> {
    let (t, d) = (a.tokens, a.shape.head_dim);
    let (cols, ranks) = (heads.kv * d, a.comm.ranks());
    let local = a.f32(Category::Working, t * a.kv_cols())?;
    if heads.replicas == 1 {
        to_tokens(a, whole, cols, Mat::new(&local, t, a.kv_cols()))?;
        return Ok(local);
    }
    let side_by_side = a.f32(Category::Communication, t * ranks * cols)?;
    let all = Mat::new(&side_by_side, t, ranks * cols);
    to_tokens(a, whole, cols, all)?;
    for rank in 0..ranks {
        let head = rank / heads.replicas;
        let out = Mat::new(&local, t, a.kv_cols()).cols(head * d..(head + 1) * d);
        let part = all.cols(rank * cols..(rank + 1) * cols);
        if rank % heads.replicas == 0 {
            a.device.copy(Lane::Compute, part, out)?;
        } else {
            a.device.add(part, out)?;
        }
    }
    Ok(local)
}

/// Queries, keys and values of this rank's heads over the whole sequence.
pub(super) fn prepare<D: Device, C: Comm<D>>(a: &Attention<D, C>, qkv: Qkv<D::Buffer>) -> Result<Qkv<D::Buffer>> {
    let (heads, d) = (heads(&a.shape, a.comm.ranks()), a.shape.head_dim);
    let (q_cols, kv_cols) = (heads.q * d, heads.kv * d);
    let kv_first = |p: usize| p / heads.replicas * kv_cols;
    Ok(Qkv {
        q: to_heads(a, qkv.q, a.q_cols(), q_cols, |p| p * q_cols)?,
        k: to_heads(a, qkv.k, a.kv_cols(), kv_cols, kv_first)?,
        v: to_heads(a, qkv.v, a.kv_cols(), kv_cols, kv_first)?,
    })
}

/// The share of the heads as an attention of its own.
fn share<D: Device, C: Comm<D>>(a: &Attention<D, C>) -> (Heads, AttentionShape, usize) {
    let heads = heads(&a.shape, a.comm.ranks());
    let shape = AttentionShape { heads: heads.q, kv_heads: heads.kv, ..a.shape };
    (heads, shape, a.tokens * a.comm.ranks())
}

/// Attention's forward over exchanged heads; see [`Attention::forward`].
pub(super) fn forward<D: Device, C: Comm<D>>(a: &Attention<D, C>, qkv: &Qkv<D::Buffer>) -> Result<Output<D::Buffer>> {
    let (_, shape, length) = share(a);
    let (q_cols, kv_cols) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let output = a.output()?;
    let o = a.device.allocate(Place::Device, Category::Communication, a.device.compute_dtype(), length * q_cols)?;
    a.device.attention(
        &shape,
        Mat::new(&qkv.q, length, q_cols),
        Mat::new(&qkv.k, length, kv_cols),
        Mat::new(&qkv.v, length, kv_cols),
        Mat::new(&o, length, q_cols),
        Mat::new(&output.lse, shape.heads, length),
    )?;
    to_tokens(a, o, q_cols, Mat::new(&output.o, a.tokens, a.q_cols()))?;
    Ok(output)
}

/// Attention's backward over exchanged heads; see [`Attention::backward`].
pub(super) fn backward<D: Device, C: Comm<D>>(
    a: &Attention<D, C>,
    qkv: Qkv<D::Buffer>,
    output: Output<D::Buffer>,
    d_o: D::Buffer,
) -> Result<Qkv<D::Buffer>> {
    let (heads, shape, length) = share(a);
    let (q_cols, kv_cols) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let o = to_heads(a, output.o, a.q_cols(), q_cols, |p| p * q_cols)?;
    let d_o = to_heads(a, d_o, a.q_cols(), q_cols, |p| p * q_cols)?;
    let take = |cols| a.device.allocate(Place::Device, Category::Communication, DType::F32, length * cols);
    let (dq, dk, dv) = (take(q_cols)?, take(kv_cols)?, take(kv_cols)?);
    a.device.attention_backward(
        &shape,
        Mat::new(&qkv.q, length, q_cols),
        Mat::new(&qkv.k, length, kv_cols),
        Mat::new(&qkv.v, length, kv_cols),
        Mat::new(&o, length, q_cols),
        Mat::new(&d_o, length, q_cols),
        Mat::new(&output.lse, shape.heads, length),
        AttentionGradients {
            dq: Mat::new(&dq, length, q_cols),
            dk: Mat::new(&dk, length, kv_cols),
            dv: Mat::new(&dv, length, kv_cols),
            accumulate: false,
        },
    )?;
    drop((qkv, o, d_o, output.lse));
    let local = a.f32(Category::Working, a.tokens * a.q_cols())?;
    to_tokens(a, dq, q_cols, Mat::new(&local, a.tokens, a.q_cols()))?;
    Ok(Qkv { q: local, k: kv_to_tokens(a, &heads, dk)?, v: kv_to_tokens(a, &heads, dv)? })
}
