//! Ring attention: queries stay, keys and values travel from rank to rank.
//!
//! Rank r holds chunks r and 2P−1−r of 2P (zigzag). At hop i it holds the keys of
//! rank s = (r − i) mod P. Hop 0 is causal over both of its chunks. For s < r its
//! queries see all of the head chunk of s and nothing of the tail chunk; for s > r
//! its tail queries see both chunks of s and its head queries none. So each hop is
//! half a square of work on every rank. Blocks are merged in f32 by their
//! log-sum-exp; the next block is on its way while one is computed.

use anyhow::Result;

use super::attention::{Attention, Output, Qkv};
use super::comm::Comm;
use crate::device::{AttentionGradients, AttentionShape, Device, Lane, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::Place;

/// Which queries see which of a visiting block's keys.
struct Hop {
    /// First query row: all rows, or the tail chunk's.
    q_from: usize,
    /// Number of key rows: the head chunk's, or all.
    keys: usize,
}

impl Hop {
    fn new(rank: usize, ranks: usize, hop: usize, tokens: usize) -> Hop {
        let source = (rank + ranks - hop) % ranks;
        if source < rank { Hop { q_from: 0, keys: tokens / 2 } } else { Hop { q_from: tokens / 2, keys: tokens } }
    }
}

/// Two slots for keys and values on their way.
type Slots<B> = [Option<(B, B)>; 2];

fn kv_slot<D: Device, C: Comm<D>>(a: &Attention<D, C>) -> Result<(D::Buffer, D::Buffer)> {
    let n = a.tokens * a.kv_cols();
    let take = || a.device.allocate(Place::Device, Category::Communication, a.device.compute_dtype(), n);
    Ok((take()?, take()?))
}

/// The keys and values that a rank holds at a hop: its own at hop 0.
fn held<'b, B>(own: &'b Qkv<B>, slots: &'b Slots<B>, hop: usize) -> (&'b B, &'b B) {
    match (hop, &slots[hop % 2]) {
        (0, _) | (_, None) => (&own.k, &own.v),
        (_, Some((k, v))) => (k, v),
    }
}

/// Sends the block of `hop` on and receives that of the next hop.
fn rotate_kv<D: Device, C: Comm<D>>(
    a: &Attention<D, C>,
    own: &Qkv<D::Buffer>,
    slots: &mut Slots<D::Buffer>,
    hop: usize,
) -> Result<D::Event> {
    let next = (hop + 1) % 2;
    if slots[next].is_none() {
        slots[next] = Some(kv_slot(a)?);
    }
    let (k, v) = held(own, slots, hop);
    let (next_k, next_v) = held(own, slots, hop + 1);
    a.comm.rotate(a.device, &[a.kv_view(k), a.kv_view(v)], &[a.kv_view(next_k), a.kv_view(next_v)])
}

/// Attention's forward over the ring; see [`Attention::forward`].
pub(super) fn forward<D: Device, C: Comm<D>>(a: &Attention<D, C>, qkv: &Qkv<D::Buffer>) -> Result<Output<D::Buffer>> {
    let (rank, ranks, t) = (a.comm.rank(), a.comm.ranks(), a.tokens);
    let output = a.output()?;
    let (o, lse) = a.output_views(&output);
    let Qkv { q, k, v } = a.views(qkv);
    let mut slots: Slots<D::Buffer> = [None, None];
    let mut arriving = if ranks > 1 { Some(rotate_kv(a, qkv, &mut slots, 0)?) } else { None };
    a.device.attention(&a.shape, q, k, v, o, lse)?;
    if ranks > 1 {
        let o_block = a.f32(Category::Working, t * a.q_cols())?;
        let lse_block = a.f32(Category::Working, t * a.shape.heads)?;
        let shape = AttentionShape { causal: false, ..a.shape };
        for hop in 1..ranks {
            if let Some(event) = arriving.take() {
                a.device.wait(Lane::Compute, &event)?;
            }
            if hop + 1 < ranks {
                arriving = Some(rotate_kv(a, qkv, &mut slots, hop)?);
            }
            let block = Hop::new(rank, ranks, hop, t);
            let (k, v) = held(qkv, &slots, hop);
            let (k, v) = (a.kv_view(k).rows(0..block.keys), a.kv_view(v).rows(0..block.keys));
            let (o_block, lse_block) = (Mat::new(&o_block, t, a.q_cols()), Mat::new(&lse_block, a.shape.heads, t));
            let (o_block, lse_block) = (o_block.rows(block.q_from..t), lse_block.cols(block.q_from..t));
            a.device.attention(&shape, q.rows(block.q_from..t), k, v, o_block, lse_block)?;
            let (o, lse) = (o.rows(block.q_from..t), lse.cols(block.q_from..t));
            a.device.attention_merge(shape.head_dim, o, lse, o_block, lse_block)?;
        }
    }
    Ok(output)
}

/// Attention's backward over the ring: the same hops with the final log-sum-exp.
/// Each block's dK and dV (f32) travel along with it and go home by one last hop.
pub(super) fn backward<D: Device, C: Comm<D>>(
    a: &Attention<D, C>,
    qkv: Qkv<D::Buffer>,
    output: Output<D::Buffer>,
    d_o: D::Buffer,
) -> Result<Qkv<D::Buffer>> {
    let (rank, ranks, t) = (a.comm.rank(), a.comm.ranks(), a.tokens);
    let (o, lse) = a.output_views(&output);
    let d_o = Mat::new(&d_o, t, a.q_cols());
    let Qkv { q, k, v } = a.views(&qkv);

    let mut slots: Slots<D::Buffer> = [None, None];
    let mut kv_arriving = if ranks > 1 { Some(rotate_kv(a, &qkv, &mut slots, 0)?) } else { None };
    let gradient = a.gradients()?;
    let Qkv { q: dq, k: dk, v: dv } = a.views(&gradient);
    let out = AttentionGradients { dq, dk, dv, accumulate: false };
    a.device.attention_backward(&a.shape, q, k, v, o, d_o, lse, out)?;
    let Qkv { q: dq, k: dk, v: dv } = gradient;
    if ranks == 1 {
        return Ok(Qkv { q: dq, k: dk, v: dv });
    }

    let n = t * a.kv_cols();
    let take = |category| Ok::<_, anyhow::Error>((a.f32(category, n)?, a.f32(category, n)?));
    // `sending` leaves with its block; `arriving` is the next block's, as far as it is.
    let (mut sending, mut arriving) = ((dk, dv), take(Category::Communication)?);
    let block_gradient = take(Category::Working)?;
    let rotate = |sending: &(D::Buffer, D::Buffer), arriving: &(D::Buffer, D::Buffer)| {
        let (from, to) =
            ([a.kv_view(&sending.0), a.kv_view(&sending.1)], [a.kv_view(&arriving.0), a.kv_view(&arriving.1)]);
        a.comm.rotate(a.device, &from, &to)
    };
    let shape = AttentionShape { causal: false, ..a.shape };
    for hop in 1..ranks {
        if let Some(event) = kv_arriving.take() {
            a.device.wait(Lane::Compute, &event)?;
        }
        let gradients_arriving = rotate(&sending, &arriving)?;
        if hop + 1 < ranks {
            kv_arriving = Some(rotate_kv(a, &qkv, &mut slots, hop)?);
        }
        let block = Hop::new(rank, ranks, hop, t);
        let (k, v) = held(&qkv, &slots, hop);
        let keys = 0..block.keys;
        let (k, v) = (a.kv_view(k).rows(keys.clone()), a.kv_view(v).rows(keys.clone()));
        let rows = block.q_from..t;
        let (dk, dv) =
            (a.kv_view(&block_gradient.0).rows(keys.clone()), a.kv_view(&block_gradient.1).rows(keys.clone()));
        a.device.fill(dk, 0.0)?;
        a.device.fill(dv, 0.0)?;
        let out = AttentionGradients { dq: Mat::new(&dq, t, a.q_cols()).rows(rows.clone()), dk, dv, accumulate: true };
        let (o, d_o, lse) = (o.rows(rows.clone()), d_o.rows(rows.clone()), lse.cols(rows.clone()));
        a.device.attention_backward(&shape, q.rows(rows), k, v, o, d_o, lse, out)?;
        a.device.wait(Lane::Compute, &gradients_arriving)?;
        a.device.add(dk, a.kv_view(&arriving.0).rows(keys.clone()))?;
        a.device.add(dv, a.kv_view(&arriving.1).rows(keys))?;
        std::mem::swap(&mut sending, &mut arriving);
    }
    let home = rotate(&sending, &arriving)?;
    a.device.wait(Lane::Compute, &home)?;
    Ok(Qkv { q: dq, k: arriving.0, v: arriving.1 })
}
