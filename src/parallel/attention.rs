//! Attention over a sequence that may be split: the one place that knows how.

use anyhow::Result;

use super::comm::Comm;
use super::split::Scheme;
use super::{ring, ulysses};
use crate::device::{AttentionGradients, AttentionShape, DType, Device, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::Place;

/// Attention of a model, on this rank's `tokens` of the sequence.
pub struct Attention<'a, D, C> {
    pub device: &'a D,
    pub comm: &'a C,
    pub scheme: Scheme,
    /// All heads of the model, causal.
    pub shape: AttentionShape,
    /// Tokens that this rank holds.
    pub tokens: usize,
}

/// Queries, keys and values of this rank's tokens:
/// [tokens, heads · head_dim], [tokens, kv_heads · head_dim] twice.
pub struct Qkv<B> {
    pub q: B,
    pub k: B,
    pub v: B,
}

/// What attention leaves: `o` [tokens, heads · head_dim] and the log-sum-exp of the
/// scores, f32, heads × tokens values in the scheme's own order.
pub struct Output<B> {
    pub o: B,
    pub lse: B,
}

impl<D: Device, C: Comm<D>> Attention<'_, D, C> {
    /// Columns of the queries.
    pub fn q_cols(&self) -> usize {
        self.shape.heads * self.shape.head_dim
    }

    /// Columns of the keys, and of the values.
    pub fn kv_cols(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim
    }

    pub(super) fn f32(&self, category: Category, elements: usize) -> Result<D::Buffer> {
        self.device.allocate(Place::Device, category, DType::F32, elements)
    }

    /// Takes memory for the output that the forward pass keeps.
    pub(super) fn output(&self) -> Result<Output<D::Buffer>> {
        let category = Category::AttentionOutputs;
        let n = self.tokens * self.q_cols();
        let o = self.device.allocate(Place::Device, category, self.device.compute_dtype(), n)?;
        Ok(Output { o, lse: self.f32(category, self.shape.heads * self.tokens)? })
    }

    /// Brings queries, keys and values into the form in which the scheme computes.
    pub fn prepare(&self, qkv: Qkv<D::Buffer>) -> Result<Qkv<D::Buffer>> {
        match self.scheme {
            Scheme::Whole | Scheme::Ring => Ok(qkv),
            Scheme::Ulysses => ulysses::prepare(self, qkv),
        }
    }

    /// The forward pass, over what [`Attention::prepare`] gave.
    pub fn forward(&self, qkv: &Qkv<D::Buffer>) -> Result<Output<D::Buffer>> {
        match self.scheme {
            Scheme::Whole => {
                let output = self.output()?;
                let Qkv { q, k, v } = self.views(qkv);
                let (o, lse) = self.output_views(&output);
                self.device.attention(&self.shape, q, k, v, o, lse)?;
                Ok(output)
            }
            Scheme::Ring => ring::forward(self, qkv),
            Scheme::Ulysses => ulysses::forward(self, qkv),
        }
    }

    /// The backward pass, over what [`Attention::prepare`] gave: gradients (f32) of this
    /// rank's q, k and v from that of the output, d_o [tokens, heads · head_dim].
    pub fn backward(&self, qkv: Qkv<D::Buffer>, output: Output<D::Buffer>, d_o: D::Buffer) -> Result<Qkv<D::Buffer>> {
        match self.scheme {
            Scheme::Whole => {
                let gradient = self.gradients()?;
                let Qkv { q, k, v } = self.views(&qkv);
                let (o, lse) = self.output_views(&output);
                let Qkv { q: dq, k: dk, v: dv } = self.views(&gradient);
                let d_o = Mat::new(&d_o, self.tokens, self.q_cols());
                let out = AttentionGradients { dq, dk, dv, accumulate: false };
                self.device.attention_backward(&self.shape, q, k, v, o, d_o, lse, out)?;
                Ok(gradient)
            }
            Scheme::Ring => ring::backward(self, qkv, output, d_o),
            Scheme::Ulysses => ulysses::backward(self, qkv, output, d_o),
        }
    }

    pub(super) fn gradients(&self) -> Result<Qkv<D::Buffer>> {
        let (q, kv) = (self.tokens * self.q_cols(), self.tokens * self.kv_cols());
        let take = |n| self.f32(Category::Working, n);
        Ok(Qkv { q: take(q)?, k: take(kv)?, v: take(kv)? })
    }

    pub(super) fn views<'b>(&self, qkv: &'b Qkv<D::Buffer>) -> Qkv<Mat<'b, D::Buffer>> {
        let (t, kv) = (self.tokens, self.kv_cols());
        Qkv { q: Mat::new(&qkv.q, t, self.q_cols()), k: Mat::new(&qkv.k, t, kv), v: Mat::new(&qkv.v, t, kv) }
    }

    /// A buffer of keys, values or their gradients as a matrix.
    pub(super) fn kv_view<'b>(&self, buffer: &'b D::Buffer) -> Mat<'b, D::Buffer> {
        Mat::new(buffer, self.tokens, self.kv_cols())
    }

    pub(super) fn output_views<'b>(&self, output: &'b Output<D::Buffer>) -> (Mat<'b, D::Buffer>, Mat<'b, D::Buffer>) {
        let o = Mat::new(&output.o, self.tokens, self.q_cols());
        (o, Mat::new(&output.lse, self.shape.heads, self.tokens))
    }
}
