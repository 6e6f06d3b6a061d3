//! The loss of a row by position, without training: the forward pass alone.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Result;

use super::ranks::{CpuComm, on_ranks};
use super::step::Cancelled;
use super::toggles::{Loss, Toggles};
use super::world::Row;
use crate::device::cpu::Cpu;
use crate::device::{DType, Device, IGNORED, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::{Phase, Place};
use crate::model::block::{Block, RopeTable};
use crate::model::config::ModelConfig;
use crate::model::head::LossHead;
use crate::model::layout::{self, Part as Tensor};
use crate::parallel::attention::Output;
use crate::parallel::comm::Comm;
use crate::parallel::shard::{Parameters, WeightSource};
use crate::parallel::split::{self, Part, Scheme, split};

/// Rows of logits at a time where the loss is not chunked by its toggle.
const CHUNK: usize = 256;

/// Loss of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// Mean over the valid targets, nats.
    pub loss: f64,
    /// Of each position, nats; 0 where the target is ignored, as that of the last is.
    pub losses: Vec<f32>,
    /// The token that follows each position, [`IGNORED`] where it doesn't count.
    pub targets: Vec<u32>,
    pub valid_targets: u64,
}

impl Evaluation {
    /// Whether the target of a position counts.
    pub fn counts(&self, position: usize) -> bool {
        self.targets[position] != IGNORED
    }
}

/// The losses of a rank's part of a row. `progress`: is called after each layer.
fn losses<D: Device, C: Comm<D>>(
    (device, comm): (&D, &C),
    (config, toggles): (&ModelConfig, &Toggles),
    source: &dyn WeightSource,
    part: &Part,
    cancelled: &AtomicBool,
    progress: &dyn Fn(usize),
) -> Result<Vec<f32>> {
    let world = (comm.rank(), comm.ranks());
    let parameters = Parameters::load(device, layout::units(config), None, world, source)?;
    let (tokens, hidden) = (part.ids.len(), config.hidden_size);
    let ids = device.upload_ids(Category::Tokens, &part.ids)?;
    let targets = device.upload_ids(Category::Tokens, &part.targets)?;
    let losses = device.allocate(Place::Device, Category::Tokens, DType::F32, tokens)?;
    let rope = RopeTable::new(device, &toggles.rope, config.head_dim, tokens, &part.positions)?;
    let (scheme, tile) = (toggles.cp.scheme(), toggles.tile);
    let block = Block { device, comm, config, scheme, rope: &rope, tokens, tile };

    let embedding = parameters.gather(device, comm, 0)?;
    let n = tokens * hidden;
    let mut x = device.allocate(Place::Device, Category::Working, device.compute_dtype(), n)?;
    let table = parameters.weights(device, &embedding)?.mat(Tensor::Embedding);
    device.embedding(&ids, 0, table, Mat::new(&x, tokens, hidden))?;
    for layer in 0..config.num_hidden_layers {
        if cancelled.load(Relaxed) {
            return Err(Cancelled.into());
        }
        device.ledger().mark(0, Phase::Forward, Some(layer as u32));
        let whole = parameters.gather(device, comm, layer + 1)?;
        let weights = parameters.weights(device, &whole)?;
        let Output { o, .. } = block.attend(&x, &weights)?;
        x = block.finish(&x, &o, &weights)?;
        progress(layer);
    }
    device.ledger().mark(0, Phase::Loss, None);
    let head = parameters.gather(device, comm, config.num_hidden_layers + 1)?;
    let own = parameters.weights(device, &head)?;
    let weights = if config.tie_word_embeddings {
        parameters.weights(device, &embedding)?.mat(Tensor::Embedding)
    } else {
        own.mat(Tensor::LmHead)
    };
    let head = LossHead {
        device,
        config,
        tokens,
        norm: own.mat(Tensor::FinalNorm),
        weights,
        targets: &targets,
        losses: &losses,
    };
    let rows = match toggles.loss {
        Loss::Full => CHUNK,
        Loss::Chunked { rows } => rows,
    };
    head.chunked(Mat::new(&x, tokens, hidden), rows)?;
    device.read(&losses)
}

/// The loss of a row on CPU ranks, as the toggles split it. `progress`: is called after
/// each layer of rank 0.
pub fn evaluate(
    config: &ModelConfig,
    toggles: &Toggles,
    source: &(dyn WeightSource + Sync),
    row: &Row,
    cancelled: &AtomicBool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Evaluation> {
    let (ranks, scheme) = (toggles.ranks, toggles.cp.scheme());
    let work = |device: &Cpu, comm: &CpuComm, out: &mut Vec<f32>| {
        let rank = Comm::<Cpu>::rank(comm);
        let part = split(&row.ids, row.labels.as_deref(), scheme, ranks, rank)?;
        let told = |layer| {
            if rank == 0 {
                progress(layer)
            }
        };
        *out = losses((device, comm), (config, toggles), source, &part, cancelled, &told)?;
        Ok(())
    };
    let left = on_ranks(ranks, None, &work, &Vec::new, &|_, losses| losses);
    if let Some(error) = left.error {
        return Err(error);
    }
    let losses = split::in_order(&left.results, row.ids.len(), scheme);
    let Part { targets, valid_targets, .. } = split(&row.ids, row.labels.as_deref(), Scheme::Whole, 1, 0)?;
    let sum: f64 = losses.iter().map(|l| f64::from(*l)).sum();
    Ok(Evaluation { loss: sum / (valid_targets as f64).max(1.0), losses, targets, valid_targets })
}
