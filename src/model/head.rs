//! The head and the loss: final norm, logits, cross entropy, and back.
//!
//! Chunked: one pass over chunks of rows, forward and backward together; the
//! gradient of the logits takes their place. Full: the logits of the whole sequence
//! in the model's type, their f32 log-probabilities and f32 gradient at once, as
//! PyTorch holds them (10 bytes a logit in bf16, 12 in f32).

use anyhow::Result;

use super::block::tiles;
use super::config::ModelConfig;
use crate::device::{DType, Device, Lane, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::Place;

/// The head of a model, on this rank's `tokens`.
pub struct Head<'a, D: Device> {
    pub device: &'a D,
    pub config: &'a ModelConfig,
    pub tokens: usize,
    /// Tokens that row-wise parts take at once.
    pub tile: usize,
    /// Weight of the final norm, [1, hidden], and its f32 gradient.
    pub norm: Mat<'a, D::Buffer>,
    pub d_norm: Mat<'a, D::Buffer>,
    /// Weights of the head, [vocabulary, hidden], and their f32 gradient.
    pub weights: Mat<'a, D::Buffer>,
    pub d_weights: Mat<'a, D::Buffer>,
    /// Target of each token.
    pub targets: &'a D::Buffer,
    /// Factor on every gradient: one over the valid targets of the whole sequence,
    /// 0 where there are none.
    pub scale: f32,
    /// f32 [1, tokens]: takes the loss of each token.
    pub losses: &'a D::Buffer,
}

/// The head of a model for the loss alone, on this rank's `tokens`.
pub struct LossHead<'a, D: Device> {
    pub device: &'a D,
    pub config: &'a ModelConfig,
    pub tokens: usize,
    /// Weight of the final norm, [1, hidden].
    pub norm: Mat<'a, D::Buffer>,
    /// Weights of the head, [vocabulary, hidden].
    pub weights: Mat<'a, D::Buffer>,
    /// Target of each token.
    pub targets: &'a D::Buffer,
    /// f32 [1, tokens]: takes the loss of each token.
    pub losses: &'a D::Buffer,
}

impl<D: Device> LossHead<'_, D> {
    /// The losses of `x` [tokens, hidden], in chunks of `rows`.
    pub fn chunked(&self, x: Mat<D::Buffer>, rows: usize) -> Result<()> {
        let (dev, c) = (self.device, self.config);
        let chunks = tiles(self.tokens, rows);
        let longest = chunks.iter().map(|r| r.len()).max().unwrap_or(0);
        let n = longest * c.vocab_size;
        let logits = dev.allocate(Place::Device, Category::Logits, dev.compute_dtype(), n)?;
        let norm = dev.working(longest, c.hidden_size)?;
        for chunk in chunks {
            let (norm, logits) =
                (Mat::at(&norm, 0, chunk.len(), c.hidden_size), Mat::at(&logits, 0, chunk.len(), c.vocab_size));
            dev.rms_norm(x.rows(chunk.clone()), self.norm, c.rms_norm_eps, norm)?;
            dev.matmul(norm, false, self.weights, true, logits, false)?;
            let losses = Mat::flat(self.losses).cols(chunk.clone());
            dev.cross_entropy_in_place(logits, self.targets, chunk.start, 0.0, losses)?;
        }
        Ok(())
    }
}

impl<D: Device> Head<'_, D> {
    fn allocate(&self, category: Category, dtype: DType, rows: usize, cols: usize) -> Result<D::Buffer> {
        self.device.allocate(Place::Device, category, dtype, rows * cols)
    }

    /// The loss in chunks of `rows`. `x` [tokens, hidden] turns into its own gradient.
    pub fn chunked(&self, x: Mat<D::Buffer>, rows: usize) -> Result<()> {
        let (dev, c) = (self.device, self.config);
        let chunks = tiles(self.tokens, rows);
        let longest = chunks.iter().map(|r| r.len()).max().unwrap_or(0);
        let dtype = dev.compute_dtype();
        let logits = self.allocate(Category::Logits, dtype, longest, c.vocab_size)?;
        let norm = dev.working(longest, c.hidden_size)?;
        let d_norm = dev.working(longest, c.hidden_size)?;
        for chunk in chunks {
            let n = chunk.len();
            let (norm, d_norm) = (Mat::at(&norm, 0, n, c.hidden_size), Mat::at(&d_norm, 0, n, c.hidden_size));
            let logits = Mat::at(&logits, 0, n, c.vocab_size);
            let x = x.rows(chunk.clone());
            dev.rms_norm(x, self.norm, c.rms_norm_eps, norm)?;
            dev.matmul(norm, false, self.weights, true, logits, false)?;
            let losses = Mat::flat(self.losses).cols(chunk.clone());
            dev.cross_entropy_in_place(logits, self.targets, chunk.start, self.scale, losses)?;
            dev.matmul(logits, true, norm, false, self.d_weights, true)?;
            dev.matmul(logits, false, self.weights, false, d_norm, false)?;
            self.norm_backward(x, d_norm, norm)?;
        }
        Ok(())
    }

    /// The loss over all logits at once. `x` [tokens, hidden] turns into its own gradient.
    pub fn full(&self, x: Mat<D::Buffer>) -> Result<()> {
        let (dev, c, t) = (self.device, self.config, self.tokens);
        let dtype = dev.compute_dtype();
        let norm = dev.working(t, c.hidden_size)?;
        let norm = Mat::new(&norm, t, c.hidden_size);
        dev.rms_norm(x, self.norm, c.rms_norm_eps, norm)?;
        let logits = self.allocate(Category::Logits, dtype, t, c.vocab_size)?;
        let log_probabilities = self.allocate(Category::Logits, DType::F32, t, c.vocab_size)?;
        let d_logits = self.allocate(Category::Logits, DType::F32, t, c.vocab_size)?;
        let view = |b| Mat::new(b, t, c.vocab_size);
        // The same row tiles as the chunked loss takes, so that rows agree bitwise.
        for rows in tiles(t, self.tile) {
            dev.matmul(norm.rows(rows.clone()), false, self.weights, true, view(&logits).rows(rows), false)?;
        }
        dev.log_softmax(view(&logits), view(&log_probabilities))?;
        let losses = Mat::flat(self.losses);
        dev.nll(view(&log_probabilities), self.targets, self.scale, view(&d_logits), losses)?;
        // PyTorch's backward gives the gradient back in the model's type, where the logits were.
        let d_logits = if dtype == DType::F32 {
            view(&d_logits)
        } else {
            dev.copy(Lane::Compute, view(&d_logits), view(&logits))?;
            view(&logits)
        };
        dev.matmul(d_logits, true, norm, false, self.d_weights, true)?;
        let d_norm = dev.working(t, c.hidden_size)?;
        let d_norm = Mat::new(&d_norm, t, c.hidden_size);
        dev.matmul(d_logits, false, self.weights, false, d_norm, false)?;
        self.norm_backward(x, d_norm, norm)
    }

    /// x ← gradient of x through the final norm; `scratch` of x's shape.
    fn norm_backward(&self, x: Mat<D::Buffer>, d_norm: Mat<D::Buffer>, scratch: Mat<D::Buffer>) -> Result<()> {
        self.device.fill(scratch, 0.0)?;
        self.device.rms_norm_backward(x, self.norm, self.config.rms_norm_eps, d_norm, scratch, self.d_norm)?;
        self.device.copy(Lane::Compute, scratch, x)
    }
}
