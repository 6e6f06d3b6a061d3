//! A transformer layer, forward and backward by hand.
//!
//! Forward: x → norm → q, k, v → head norm → rope → attention → o-proj → + x →
//! norm → gate, up → SwiGLU → down → +. Row-wise parts run tile by tile, so that
//! nothing of the MLP's width exists for the whole sequence.

use std::ops::Range;

use anyhow::Result;

use super::config::ModelConfig;
use super::layout::Part;
use super::rope::Rope;
use crate::device::{AttentionShape, Buffer, DType, Device, HeadNormRope, Lane, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::Place;
use crate::parallel::attention::{Attention, Output, Qkv};
use crate::parallel::comm::Comm;
use crate::parallel::shard::UnitView;
use crate::parallel::split::Scheme;

/// Fewer rows than this join the tile before: matrix libraries take other paths for
/// very short ones, and a row's result must not depend on the tiling.
pub const SHORTEST_TILE: usize = 32;

/// Rows in tiles of `tile`.
pub fn tiles(rows: usize, tile: usize) -> Vec<Range<usize>> {
    let mut tiles: Vec<Range<usize>> = Vec::new();
    for start in (0..rows).step_by(tile) {
        let end = (start + tile).min(rows);
        match tiles.last_mut() {
            Some(last) if end - start < SHORTEST_TILE => last.end = end,
            _ => tiles.push(start..end),
        }
    }
    tiles
}

/// Cosines and sines of this rank's positions, [tokens, head_dim / 2] each.
pub struct RopeTable<B> {
    pub cos: B,
    pub sin: B,
}

impl<B: Buffer> RopeTable<B> {
    /// The table of these positions; of `tokens` that have none, where only shapes count.
    pub fn new<D: Device<Buffer = B>>(
        device: &D,
        rope: &Rope,
        head_dim: usize,
        tokens: usize,
        positions: &[u32],
    ) -> Result<Self> {
        let half = head_dim / 2;
        let take = || device.allocate(Place::Device, Category::Rope, DType::F32, tokens * half);
        let table = RopeTable { cos: take()?, sin: take()? };
        let (cos, sin) = (Mat::new(&table.cos, tokens, half), Mat::new(&table.sin, tokens, half));
        device.rope_table(&rope.inverse_frequencies(head_dim), positions, rope.attention_scaling(), cos, sin)?;
        Ok(table)
    }
}

/// What every layer of a rank works with.
pub struct Block<'a, D: Device, C> {
    pub device: &'a D,
    pub comm: &'a C,
    pub config: &'a ModelConfig,
    pub scheme: Scheme,
    pub rope: &'a RopeTable<D::Buffer>,
    /// Tokens that this rank holds.
    pub tokens: usize,
    /// Tokens that row-wise parts take at once.
    pub tile: usize,
}

impl<D: Device, C: Comm<D>> Block<'_, D, C> {
    fn attention(&self) -> Attention<'_, D, C> {
        let c = self.config;
        let shape = AttentionShape {
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
            scale: 1.0 / (c.head_dim as f32).sqrt(),
            causal: true,
        };
        Attention { device: self.device, comm: self.comm, scheme: self.scheme, shape, tokens: self.tokens }
    }

    fn tiles(&self) -> Vec<Range<usize>> {
        tiles(self.tokens, self.tile)
    }

    fn longest_tile(&self) -> usize {
        self.tiles().iter().map(|t| t.len()).max().unwrap_or(0)
    }

    fn hidden<'b>(&self, buffer: &'b D::Buffer) -> Mat<'b, D::Buffer> {
        Mat::new(buffer, self.tokens, self.config.hidden_size)
    }

    /// A working buffer for one tile of `cols` columns.
    fn tile_buffer(&self, cols: usize) -> Result<D::Buffer> {
        self.device.working(self.longest_tile(), cols)
    }

    /// One of the three projections of a tile, not yet normed nor rotated.
    fn project(&self, norm: Mat<D::Buffer>, weight: Mat<D::Buffer>, out: Mat<D::Buffer>) -> Result<()> {
        self.device.matmul(norm, false, weight, true, out, false)
    }

    /// norm → q, k, v → head norm → rope, for the whole part of this rank.
    fn qkv(&self, x: &D::Buffer, w: &UnitView<D>) -> Result<Qkv<D::Buffer>> {
        let a = self.attention();
        let (q_cols, kv_cols) = (a.q_cols(), a.kv_cols());
        let qkv = Qkv {
            q: self.device.working(self.tokens, q_cols)?,
            k: self.device.working(self.tokens, kv_cols)?,
            v: self.device.working(self.tokens, kv_cols)?,
        };
        let norm = self.tile_buffer(self.config.hidden_size)?;
        for rows in self.tiles() {
            let norm = Mat::at(&norm, 0, rows.len(), self.config.hidden_size);
            let tile = |b, cols| Mat::new(b, self.tokens, cols).rows(rows.clone());
            let (q, k, v) = (tile(&qkv.q, q_cols), tile(&qkv.k, kv_cols), tile(&qkv.v, kv_cols));
            let x = self.hidden(x).rows(rows.clone());
            self.device.rms_norm(x, w.mat(Part::InputNorm), self.config.rms_norm_eps, norm)?;
            self.project(norm, w.mat(Part::Q), q)?;
            self.project(norm, w.mat(Part::K), k)?;
            self.project(norm, w.mat(Part::V), v)?;
            self.device.head_norm_rope(&self.head_norm_rope(w.get(Part::QNorm), &rows), q)?;
            self.device.head_norm_rope(&self.head_norm_rope(w.get(Part::KNorm), &rows), k)?;
        }
        Ok(qkv)
    }

    fn head_norm_rope<'b>(
        &'b self,
        weight: Option<Mat<'b, D::Buffer>>,
        rows: &Range<usize>,
    ) -> HeadNormRope<'b, D::Buffer> {
        let (d, half) = (self.config.head_dim, self.config.head_dim / 2);
        let table = |b| Mat::new(b, self.tokens, half).rows(rows.clone());
        let (cos, sin) = (table(&self.rope.cos), table(&self.rope.sin));
        HeadNormRope { weight, eps: self.config.rms_norm_eps, cos, sin, head_dim: d }
    }

    /// Attention from the layer's input: what a forward pass, or a recompute, needs.
    pub fn attend(&self, x: &D::Buffer, w: &UnitView<D>) -> Result<Output<D::Buffer>> {
        let a = self.attention();
        let qkv = a.prepare(self.qkv(x, w)?)?;
        a.forward(&qkv)
    }

    /// The rest of the layer: [tokens, hidden] out, from its input and its attention.
    pub fn finish(&self, x: &D::Buffer, o: &D::Buffer, w: &UnitView<D>) -> Result<D::Buffer> {
        let (hidden, ffn) = (self.config.hidden_size, self.config.intermediate_size);
        let dtype = self.device.compute_dtype();
        let y = self.device.allocate(Place::Device, Category::LayerInputs, dtype, self.tokens * hidden)?;
        let norm = self.tile_buffer(hidden)?;
        let (gate, up, act) = (self.tile_buffer(ffn)?, self.tile_buffer(ffn)?, self.tile_buffer(ffn)?);
        for rows in self.tiles() {
            let n = rows.len();
            let y = self.hidden(&y).rows(rows.clone());
            let norm = Mat::at(&norm, 0, n, hidden);
            let (gate, up, act) = (Mat::at(&gate, 0, n, ffn), Mat::at(&up, 0, n, ffn), Mat::at(&act, 0, n, ffn));
            self.after_attention(x, o, w, &rows, y)?;
            self.gate_up(y, w, norm, gate, up, act)?;
            self.device.matmul(act, false, w.mat(Part::Down), true, y, true)?;
        }
        Ok(y)
    }

    /// mid ← x + o · Woᵀ, of one tile.
    fn after_attention(
        &self,
        x: &D::Buffer,
        o: &D::Buffer,
        w: &UnitView<D>,
        rows: &Range<usize>,
        mid: Mat<D::Buffer>,
    ) -> Result<()> {
        let x = self.hidden(x).rows(rows.clone());
        let o = Mat::new(o, self.tokens, self.attention().q_cols()).rows(rows.clone());
        self.device.copy(Lane::Compute, x, mid)?;
        self.device.matmul(o, false, w.mat(Part::O), true, mid, true)
    }

    /// mid → norm → gate, up → act, of one tile.
    fn gate_up(
        &self,
        mid: Mat<D::Buffer>,
        w: &UnitView<D>,
        norm: Mat<D::Buffer>,
        gate: Mat<D::Buffer>,
        up: Mat<D::Buffer>,
        act: Mat<D::Buffer>,
    ) -> Result<()> {
        self.device.rms_norm(mid, w.mat(Part::PostNorm), self.config.rms_norm_eps, norm)?;
        self.project(norm, w.mat(Part::Gate), gate)?;
        self.project(norm, w.mat(Part::Up), up)?;
        self.device.swiglu(gate, up, act)
    }

    /// The backward pass. `attention`: what was kept of it, else it is computed again.
    /// `dy` [tokens, hidden] turns from the gradient of the output into that of `x`;
    /// gradients of the weights add to `g`.
    pub fn backward(
        &self,
        x: &D::Buffer,
        attention: Option<Output<D::Buffer>>,
        w: &UnitView<D>,
        g: &UnitView<D>,
        dy: &D::Buffer,
    ) -> Result<()> {
        let a = self.attention();
        let (qkv, output) = match attention {
            Some(output) => (None, output),
            None => {
                let qkv = a.prepare(self.qkv(x, w)?)?;
                let output = a.forward(&qkv)?;
                (Some(qkv), output)
            }
        };
        let d_o = self.mlp_backward(x, &output.o, w, g, dy)?;
        let qkv = match qkv {
            Some(qkv) => qkv,
            None => a.prepare(self.qkv(x, w)?)?,
        };
        let gradient = a.backward(qkv, output, d_o)?;
        self.qkv_backward(x, gradient, w, g, dy)
    }

    /// Back through the MLP and the output projection, tile by tile: gate and up are
    /// computed again, down is not. `dy` gains the gradient that goes around attention.
    fn mlp_backward(
        &self,
        x: &D::Buffer,
        o: &D::Buffer,
        w: &UnitView<D>,
        g: &UnitView<D>,
        dy: &D::Buffer,
    ) -> Result<D::Buffer> {
        let (hidden, ffn, q_cols) = (self.config.hidden_size, self.config.intermediate_size, self.attention().q_cols());
        let (dev, eps) = (self.device, self.config.rms_norm_eps);
        let d_o = dev.working(self.tokens, q_cols)?;
        let (norm, d_norm, mid) = (self.tile_buffer(hidden)?, self.tile_buffer(hidden)?, self.tile_buffer(hidden)?);
        let (gate, up, act) = (self.tile_buffer(ffn)?, self.tile_buffer(ffn)?, self.tile_buffer(ffn)?);
        for rows in self.tiles() {
            let n = rows.len();
            let (norm, d_norm, mid) =
                (Mat::at(&norm, 0, n, hidden), Mat::at(&d_norm, 0, n, hidden), Mat::at(&mid, 0, n, hidden));
            let (gate, up, act) = (Mat::at(&gate, 0, n, ffn), Mat::at(&up, 0, n, ffn), Mat::at(&act, 0, n, ffn));
            let dy = self.hidden(dy).rows(rows.clone());
            self.after_attention(x, o, w, &rows, mid)?;
            self.gate_up(mid, w, norm, gate, up, act)?;
            dev.matmul(dy, true, act, false, g.mat(Part::Down), true)?;
            let d_act = act;
            dev.matmul(dy, false, w.mat(Part::Down), false, d_act, false)?;
            dev.swiglu_backward(gate, up, d_act)?;
            let (d_gate, d_up) = (gate, up);
            dev.matmul(d_gate, true, norm, false, g.mat(Part::Gate), true)?;
            dev.matmul(d_up, true, norm, false, g.mat(Part::Up), true)?;
            dev.matmul(d_gate, false, w.mat(Part::Gate), false, d_norm, false)?;
            dev.matmul(d_up, false, w.mat(Part::Up), false, d_norm, true)?;
            dev.rms_norm_backward(mid, w.mat(Part::PostNorm), eps, d_norm, dy, g.mat(Part::PostNorm))?;
            let o = Mat::new(o, self.tokens, q_cols).rows(rows.clone());
            dev.matmul(dy, true, o, false, g.mat(Part::O), true)?;
            let d_o = Mat::new(&d_o, self.tokens, q_cols).rows(rows);
            dev.matmul(dy, false, w.mat(Part::O), false, d_o, false)?;
        }
        Ok(d_o)
    }

    /// Back through rope, head norms, projections and the input norm, tile by tile.
    /// q and k before their norm are projected again a tile at a time: that costs an
    /// eighth of the layer's products once and saves two buffers of the whole length.
    fn qkv_backward(
        &self,
        x: &D::Buffer,
        gradient: Qkv<D::Buffer>,
        w: &UnitView<D>,
        g: &UnitView<D>,
        dy: &D::Buffer,
    ) -> Result<()> {
        let a = self.attention();
        let (hidden, q_cols, kv_cols) = (self.config.hidden_size, a.q_cols(), a.kv_cols());
        let (dev, eps) = (self.device, self.config.rms_norm_eps);
        let gradient = self.in_compute_dtype(gradient)?;
        let (norm, d_norm) = (self.tile_buffer(hidden)?, self.tile_buffer(hidden)?);
        let (q, k) = (self.tile_buffer(q_cols)?, self.tile_buffer(kv_cols)?);
        for rows in self.tiles() {
            let n = rows.len();
            let (norm, d_norm) = (Mat::at(&norm, 0, n, hidden), Mat::at(&d_norm, 0, n, hidden));
            let (q, k) = (Mat::at(&q, 0, n, q_cols), Mat::at(&k, 0, n, kv_cols));
            let tile = |b, cols| Mat::new(b, self.tokens, cols).rows(rows.clone());
            let (dq, dk, dv) = (tile(&gradient.q, q_cols), tile(&gradient.k, kv_cols), tile(&gradient.v, kv_cols));
            let x = self.hidden(x).rows(rows.clone());
            dev.rms_norm(x, w.mat(Part::InputNorm), eps, norm)?;
            self.project(norm, w.mat(Part::Q), q)?;
            self.project(norm, w.mat(Part::K), k)?;
            let q_rope = self.head_norm_rope(w.get(Part::QNorm), &rows);
            let k_rope = self.head_norm_rope(w.get(Part::KNorm), &rows);
            dev.head_norm_rope_backward(&q_rope, q, dq, g.get(Part::QNorm))?;
            dev.head_norm_rope_backward(&k_rope, k, dk, g.get(Part::KNorm))?;
            for (i, (d, part)) in [(dq, Part::Q), (dk, Part::K), (dv, Part::V)].into_iter().enumerate() {
                dev.matmul(d, true, norm, false, g.mat(part), true)?;
                dev.matmul(d, false, w.mat(part), false, d_norm, i > 0)?;
            }
            let dy = self.hidden(dy).rows(rows);
            dev.rms_norm_backward(x, w.mat(Part::InputNorm), eps, d_norm, dy, g.mat(Part::InputNorm))?;
        }
        Ok(())
    }

    /// Attention's f32 gradients in the type that products take.
    fn in_compute_dtype(&self, gradient: Qkv<D::Buffer>) -> Result<Qkv<D::Buffer>> {
        let cast = |from: D::Buffer| {
            if self.device.compute_dtype() == DType::F32 {
                return Ok(from);
            }
            let to = self.device.working(1, from.elements())?;
            self.device.copy(Lane::Compute, Mat::flat(&from), Mat::flat(&to))?;
            Ok::<_, anyhow::Error>(to)
        };
        Ok(Qkv { q: cast(gradient.q)?, k: cast(gradient.k)?, v: cast(gradient.v)? })
    }
}
