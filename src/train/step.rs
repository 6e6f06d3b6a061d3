//! The training step: forward, loss, backward, update, written once for every device.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Result, bail};

use super::saved::{Kind, Saved};
use super::toggles::{Loss, Toggles};
use crate::device::{AdamW, Buffer, DType, Device, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::{Phase, Place};
use crate::model::block::{Block, RopeTable};
use crate::model::config::ModelConfig;
use crate::model::head::Head;
use crate::model::layout::{self, Part};
use crate::parallel::attention::Output;
use crate::parallel::comm::Comm;
use crate::parallel::shard::{Parameters, WeightSource, Whole};
use crate::parallel::split;

/// AdamW's constants and the run's: the guide's defaults unless an experiment says otherwise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimizer {
    /// Learning rate of the first step; it falls linearly to 0 over `steps`.
    pub learning_rate: f64,
    /// Steps of the whole run.
    pub steps: u32,
    /// The global gradient norm is clipped to this.
    pub max_gradient_norm: f64,
    pub seed: u64,
}

impl Optimizer {
    const BETA1: f64 = 0.9;
    const BETA2: f64 = 0.999;
    const EPS: f64 = 1e-8;

    /// Learning rate of a step (from 0): linear decay without warm-up.
    pub fn learning_rate_at(&self, step: u32) -> f64 {
        self.learning_rate * f64::from(self.steps.saturating_sub(step)) / f64::from(self.steps.max(1))
    }
}

/// What a step tells.
#[derive(Debug, Clone, PartialEq)]
pub struct StepResult {
    /// Mean loss over the valid targets of the whole sequence, nats.
    pub loss: f64,
    /// Global norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Loss of each of this rank's tokens, 0 where the target is ignored.
    pub losses: Vec<f32>,
}

/// One rank of a training run.
pub struct Trainer<'a, D: Device, C> {
    pub device: &'a D,
    pub comm: &'a C,
    pub config: &'a ModelConfig,
    pub toggles: &'a Toggles,
    pub parameters: Parameters<D>,
    saved: Saved<D>,
    step: u32,
    /// Set from outside to end the run at the next mark.
    cancelled: &'a AtomicBool,
}

/// The run was ended from outside.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

impl<'a, D: Device, C: Comm<D>> Trainer<'a, D, C> {
    /// Takes memory for this rank's part of the model and fills it.
    pub fn new(
        device: &'a D,
        comm: &'a C,
        config: &'a ModelConfig,
        toggles: &'a Toggles,
        source: &dyn WeightSource,
        cancelled: &'a AtomicBool,
    ) -> Result<Self> {
        device.ledger().mark(0, Phase::Load, None);
        let world = (comm.rank(), comm.ranks());
        let parameters = Parameters::load(device, layout::units(config), Some(toggles.moments.dtype()), world, source)?;
        Ok(Trainer {
            device,
            comm,
            config,
            toggles,
            parameters,
            saved: Saved::new(toggles, config.num_hidden_layers),
            step: 0,
            cancelled,
        })
    }

    /// One step on this rank's part of a row: loss, gradients, update.
    pub fn step(&mut self, part: &split::Part, optimizer: &Optimizer) -> Result<StepResult> {
        let (loss, losses) = self.gradients(part)?;
        if !loss.is_finite() {
            bail!("the loss of step {} is {loss}: the learning rate may be too high", self.step + 1);
        }
        let gradient_norm = self.update(optimizer)?;
        self.step += 1;
        Ok(StepResult { loss, gradient_norm, losses })
    }

    /// Says where the rank is; ends the run here if that was asked for.
    fn mark(&self, phase: Phase, layer: Option<usize>) -> Result<()> {
        if self.cancelled.load(Relaxed) {
            return Err(Cancelled.into());
        }
        self.device.ledger().mark(self.step, phase, layer.map(|l| l as u32));
        Ok(())
    }

    /// Forward, loss and backward: leaves the gradients, returns the mean loss over the
    /// whole sequence and the loss of each of this rank's tokens.
    pub fn gradients(&mut self, part: &split::Part) -> Result<(f64, Vec<f32>)> {
        self.mark(Phase::Forward, None)?;
        let device = self.device;
        let tokens = part.tokens;
        let ids = self.tokens(tokens, &part.ids)?;
        let targets = self.tokens(tokens, &part.targets)?;
        let losses = device.allocate(Place::Device, Category::Tokens, DType::F32, tokens)?;
        let rope = RopeTable::new(device, &self.toggles.rope, self.config.head_dim, tokens, &part.positions)?;
        self.parameters.zero_gradients(device)?;
        let (comm, config) = (self.comm, self.config);
        let (scheme, tile) = (self.toggles.cp.scheme(), self.toggles.tile);
        let block = Block { device, comm, config, scheme, rope: &rope, tokens, tile };

        let hidden = self.forward(&block, &ids)?;
        let gradient = self.loss(hidden, &targets, &losses, part.valid_targets)?;
        self.backward(&block, &ids, gradient)?;

        let losses = device.read(&losses)?;
        let sum = comm.sum(&[losses.iter().map(|l| f64::from(*l)).sum()])?[0];
        Ok((sum / (part.valid_targets as f64).max(1.0), losses))
    }

    /// Ids or targets on the device; of a shape, without content.
    fn tokens(&self, tokens: usize, values: &[u32]) -> Result<D::Buffer> {
        match values {
            [] => self.device.allocate(Place::Device, Category::Tokens, DType::U32, tokens),
            values => self.device.upload_ids(Category::Tokens, values),
        }
    }

    /// The unit of a layer, in the order of [`layout::units`].
    fn layer_unit(&self, layer: usize) -> usize {
        layer + 1
    }

    fn head_unit(&self) -> usize {
        self.config.num_hidden_layers + 1
    }

    fn keeps_attention(&self, layer: usize) -> bool {
        layer >= self.toggles.keep.attention_from(self.config.num_hidden_layers)
    }

    fn is_checkpoint(&self, layer: usize) -> bool {
        layer.is_multiple_of(self.toggles.every)
    }

    /// Embedding and all layers; keeps what the toggles say; returns the last hidden states.
    fn forward(&mut self, block: &Block<D, C>, ids: &D::Buffer) -> Result<D::Buffer> {
        let (device, comm) = (self.device, self.comm);
        let (tokens, hidden) = (block.tokens, self.config.hidden_size);
        let whole = self.parameters.gather(device, comm, 0)?;
        let mut ahead: Option<Whole<D>> = Some(self.parameters.gather(device, comm, 1)?);
        let dtype = device.compute_dtype();
        let mut x = device.allocate(Place::Device, Category::LayerInputs, dtype, tokens * hidden)?;
        let table = self.parameters.weights(device, &whole)?.mat(Part::Embedding);
        device.embedding(ids, 0, table, Mat::new(&x, tokens, hidden))?;
        drop(whole);

        for layer in 0..self.config.num_hidden_layers {
            self.mark(Phase::Forward, Some(layer))?;
            let whole = match ahead.take() {
                Some(whole) => whole,
                None => self.parameters.gather(device, comm, self.layer_unit(layer))?,
            };
            let weights = self.parameters.weights(device, &whole)?;
            if layer + 1 < self.config.num_hidden_layers {
                ahead = Some(self.parameters.gather(device, comm, self.layer_unit(layer + 1))?);
            }
            let keeps_input = self.is_checkpoint(layer);
            let input_sent = if keeps_input { self.saved.send(device, layer, Kind::Input, &x)? } else { None };
            let Output { o, lse } = block.attend(&x, &weights)?;
            let keeps_attention = self.keeps_attention(layer);
            let mut attention_sent = (None, None);
            if keeps_attention {
                attention_sent.0 = self.saved.send(device, layer, Kind::Attention, &o)?;
                attention_sent.1 = self.saved.send(device, layer, Kind::LogSumExp, &lse)?;
            }
            let y = block.finish(&x, &o, &weights)?;
            if keeps_attention {
                self.saved.keep(device, layer, Kind::Attention, o, attention_sent.0)?;
                self.saved.keep(device, layer, Kind::LogSumExp, lse, attention_sent.1)?;
            }
            if keeps_input {
                self.saved.keep(device, layer, Kind::Input, x, input_sent)?;
            }
            x = y;
        }
        Ok(x)
    }

    /// Head and loss: turns the last hidden states into their gradient.
    fn loss(&mut self, mut x: D::Buffer, targets: &D::Buffer, losses: &D::Buffer, valid: u64) -> Result<D::Buffer> {
        self.mark(Phase::Loss, None)?;
        let (device, comm) = (self.device, self.comm);
        x.recategorize(Category::Working);
        let tied = self.config.tie_word_embeddings;
        let head = self.parameters.gather(device, comm, self.head_unit())?;
        let embedding = if tied { Some(self.parameters.gather(device, comm, 0)?) } else { None };
        let d_head = self.parameters.begin_gradient(device, self.head_unit())?;
        let d_embedding = if tied { Some(self.parameters.begin_gradient(device, 0)?) } else { None };
        {
            let w = self.parameters.weights(device, &head)?;
            let g = self.parameters.gradient(&d_head);
            let (weights, d_weights) = match (&embedding, &d_embedding) {
                (Some(whole), Some(gradient)) => (
                    self.parameters.weights(device, whole)?.mat(Part::Embedding),
                    self.parameters.gradient(gradient).mat(Part::Embedding),
                ),
                _ => (w.mat(Part::LmHead), g.mat(Part::LmHead)),
            };
            let (tokens, hidden) = (losses.elements(), self.config.hidden_size);
            let head = Head {
                device,
                config: self.config,
                tokens,
                tile: self.toggles.tile,
                norm: w.mat(Part::FinalNorm),
                d_norm: g.mat(Part::FinalNorm),
                weights,
                d_weights,
                targets,
                scale: if valid == 0 { 0.0 } else { (1.0 / valid as f64) as f32 },
                losses,
            };
            let view = Mat::new(&x, tokens, hidden);
            match self.toggles.loss {
                Loss::Full => head.full(view)?,
                Loss::Chunked { rows } => head.chunked(view, rows)?,
            }
        }
        drop((head, embedding));
        self.parameters.reduce(device, comm, d_head)?;
        if let Some(gradient) = d_embedding {
            self.parameters.reduce(device, comm, gradient)?;
        }
        Ok(x)
    }

    /// From the last layer to the embedding. `dy` [tokens, hidden]: gradient of the
    /// last hidden states.
    fn backward(&mut self, block: &Block<D, C>, ids: &D::Buffer, dy: D::Buffer) -> Result<()> {
        let (device, comm) = (self.device, self.comm);
        let layers = self.config.num_hidden_layers;
        let mut ahead: Option<Whole<D>> = None;
        let mut end = layers;
        while end > 0 {
            let start = (end - 1) / self.toggles.every * self.toggles.every;
            let mut inputs = self.recompute_inputs(block, start, end)?;
            for layer in (start..end).rev() {
                self.mark(Phase::Backward, Some(layer))?;
                let whole = match ahead.take() {
                    Some(whole) => whole,
                    None => self.parameters.gather(device, comm, self.layer_unit(layer))?,
                };
                let weights = self.parameters.weights(device, &whole)?;
                if layer > start {
                    ahead = Some(self.parameters.gather(device, comm, self.layer_unit(layer - 1))?);
                } else if layer > 0 && self.toggles.every == 1 {
                    ahead = Some(self.parameters.gather(device, comm, self.layer_unit(layer - 1))?);
                    self.saved.fetch(device, layer - 1, Kind::Input)?;
                }
                let attention = if self.keeps_attention(layer) {
                    Some(kept_attention(&mut self.saved, device, layer)?)
                } else {
                    None
                };
                if layer > 0 && attention.is_some() {
                    self.saved.fetch(device, layer - 1, Kind::Attention)?;
                    self.saved.fetch(device, layer - 1, Kind::LogSumExp)?;
                }
                let gradient = self.parameters.begin_gradient(device, self.layer_unit(layer))?;
                let x = match inputs.pop() {
                    Some(x) => x,
                    None => self.saved.take(device, layer, Kind::Input)?,
                };
                block.backward(&x, attention, &weights, &self.parameters.gradient(&gradient), &dy)?;
                drop((x, whole));
                self.parameters.reduce(device, comm, gradient)?;
            }
            end = start;
        }
        self.mark(Phase::Backward, None)?;
        let gradient = self.parameters.begin_gradient(device, 0)?;
        let d_table = self.parameters.gradient(&gradient).mat(Part::Embedding);
        device.embedding_backward(ids, 0, Mat::new(&dy, block.tokens, self.config.hidden_size), d_table)?;
        drop(dy);
        self.parameters.reduce(device, comm, gradient)?;
        self.parameters.finish_reducing(device)
    }

    /// Inputs of layers `start..end` from the checkpoint at `start`, where that holds
    /// more than one layer: runs all but the last of them forward again.
    fn recompute_inputs(&mut self, block: &Block<D, C>, start: usize, end: usize) -> Result<Vec<D::Buffer>> {
        if self.toggles.every == 1 {
            return Ok(Vec::new());
        }
        let mut inputs = vec![self.saved.take(self.device, start, Kind::Input)?];
        for layer in start..end - 1 {
            self.mark(Phase::Backward, Some(layer))?;
            let whole = self.parameters.gather(self.device, self.comm, self.layer_unit(layer))?;
            let weights = self.parameters.weights(self.device, &whole)?;
            let x = &inputs[layer - start];
            let y = if self.keeps_attention(layer) {
                let o = self.saved.take(self.device, layer, Kind::Attention)?;
                let y = block.finish(x, &o, &weights)?;
                self.saved.put_back(layer, Kind::Attention, o);
                y
            } else {
                block.finish(x, &block.attend(x, &weights)?.o, &weights)?
            };
            inputs.push(y);
        }
        Ok(inputs)
    }

    /// Clips by the global norm and updates this rank's part; returns the norm.
    fn update(&mut self, optimizer: &Optimizer) -> Result<f64> {
        self.mark(Phase::Update, None)?;
        let squares = self.parameters.gradient_squares(self.device)?;
        let norm = self.comm.sum(&[squares])?[0].sqrt();
        if !norm.is_finite() {
            bail!("the gradient norm of step {} is {norm}: the learning rate may be too high", self.step + 1);
        }
        // torch.nn.utils.clip_grad_norm_: never enlarges, 1e-6 in the denominator.
        let gradient_scale = (optimizer.max_gradient_norm / (norm + 1e-6)).min(1.0);
        let update = AdamW {
            learning_rate: optimizer.learning_rate_at(self.step),
            beta1: Optimizer::BETA1,
            beta2: Optimizer::BETA2,
            eps: Optimizer::EPS,
            update: self.step + 1,
            gradient_scale,
            seed: optimizer.seed,
            unit: 0,
            first_element: 0,
        };
        self.parameters.update(self.device, &update)?;
        Ok(norm)
    }
}

/// What was kept of a layer's attention.
fn kept_attention<D: Device>(saved: &mut Saved<D>, device: &D, layer: usize) -> Result<Output<D::Buffer>> {
    let o = saved.take(device, layer, Kind::Attention)?;
    Ok(Output { o, lse: saved.take(device, layer, Kind::LogSumExp)? })
}
