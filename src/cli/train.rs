//! `ablation train`: trains a model on rows of one length and saves it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::common::{on_interrupt, open_model};
use super::rows::{Data, RowOptions};
use super::toggles::{ToggleOptions, host_room};
use crate::bad_input;
use crate::device::dry::Profile;
use crate::ladder::machine::Machine;
use crate::memory::category::{Bytes, Category};
use crate::model::checkpoint::Checkpoint;
use crate::model::layout::Slot;
use crate::model::save::{Dtype, Model, save};
use crate::notice;
use crate::parallel::shard::WeightSource;
use crate::parallel::split::Scheme;
use crate::plan::{Plan, Room, Setting};
use crate::train::bands::mean;
use crate::train::gathered::{Gathered, Tensors};
use crate::train::judge;
use crate::train::step::{Cancelled, Optimizer, StepResult};
use crate::train::toggles::{Auto, Toggles};
use crate::train::world::{Job, Outcome, run_with};
use crate::units::{format_tokens, parse_bytes};

/// Train a model on long sequences and save it
#[derive(Debug, clap::Args)]
pub struct Train {
    /// An id on the Hugging Face hub, a folder with config.json and safetensors, or a GGUF file
    #[arg(long, value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    data: RowOptions,
    /// Steps; each takes a row, from the first again when they are through
    #[arg(long, value_name = "N", default_value_t = 12)]
    steps: u32,
    /// The folder for the trained model and training.json; it must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Learning rate of the first step; it falls linearly to 0
    #[arg(long, value_name = "X", default_value_t = 2e-5)]
    learning_rate: f64,
    /// The global gradient norm is clipped to this
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    max_grad_norm: f64,
    /// Seed of stochastic rounding
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Bytes that each rank may hold on its device, such as 80GiB
    #[arg(long, value_name = "BYTES")]
    budget: Option<String>,
    /// Train beyond the model's own length without scaling its positions
    #[arg(long, conflicts_with = "yarn")]
    unscaled: bool,
    /// Ranks that share the sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: usize,
    /// Host memory that may hold kept activations, where the plan chooses [default: nine tenths
    /// of what this machine gives]
    #[arg(long, value_name = "BYTES")]
    host: Option<String>,
    #[command(flatten)]
    toggles: ToggleOptions,
}

/// Weights read out of the ranks.
struct Trained(Tensors);

impl WeightSource for Trained {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()> {
        match self.0.get(&slot.name).and_then(|values| values.get(first..first + out.len())) {
            Some(values) => out.copy_from_slice(values),
            None => bail!("the ranks left no `{}`", slot.name),
        }
        Ok(())
    }
}

/// Steps as a log tells them.
struct Log {
    optimizer: Optimizer,
    length: u64,
    rows: usize,
    start: Instant,
}

impl Log {
    /// A step as Hugging Face's trainers log it.
    fn entry(&self, step: usize, loss: f64, gradient_norm: f64) -> Value {
        let done = step + 1;
        json!({
            "loss": loss, "grad_norm": gradient_norm, "learning_rate": self.optimizer.learning_rate_at(step as u32),
            "num_tokens": self.length * done as u64, "epoch": done as f64 / self.rows as f64,
        })
    }

    /// The line of a step, with how long is to go.
    fn line(&self, step: usize, result: &StepResult) -> String {
        let (done, steps) = (step + 1, self.optimizer.steps);
        let seconds = self.start.elapsed().as_secs_f64() / done as f64;
        let left = seconds * (f64::from(steps) - done as f64);
        format!(
            "{{'loss': {:.4}, 'grad_norm': {:.4}, 'learning_rate': {:.3e}, 'num_tokens': {}, 'epoch': {:.2}}}  \
             {done}/{steps}, {seconds:.2} s/it, {:.0} s left",
            result.loss,
            result.gradient_norm,
            self.optimizer.learning_rate_at(step as u32),
            self.length * done as u64,
            done as f64 / self.rows as f64,
            left.max(0.0)
        )
    }
}

/// Loss of about the first and the last eighth of the sequence, as far as rank 0 has them.
fn ends(losses: &[f32], scheme: Scheme, ranks: usize) -> Option<(Option<f64>, Option<f64>)> {
    let part = match scheme {
        Scheme::Whole => losses.len().div_ceil(8),
        // Rank 0 has the first and the last of 2P chunks.
        Scheme::Ring => (losses.len() / 2).min((losses.len() * ranks).div_ceil(8)),
        Scheme::Ulysses => return None,
    };
    // A target that doesn't count has a loss of exactly 0.
    let of = |range| mean(losses, range, |i| losses[i] != 0.0);
    Some((of(0..part), of(losses.len() - part..losses.len())))
}

fn checked(command: &Train) -> Result<()> {
    if command.steps == 0 || !(command.learning_rate.is_finite() && command.learning_rate >= 0.0) {
        bad_input!("steps must be positive, and the learning rate a number, 0 or above");
    }
    if !(command.max_grad_norm.is_finite() && command.max_grad_norm > 0.0) {
        bad_input!("--max-grad-norm must be a number above 0");
    }
    if command.out.exists() {
        bad_input!("{}: it exists already; give another folder for the model", command.out.display());
    }
    Ok(())
}

/// The plan of the run, its toggles chosen where that is asked for.
fn planned(command: &Train, model: &Checkpoint, length: u64) -> Result<Plan> {
    let (toggles, auto) = command.toggles.toggles(&model.config, &model.rope, command.ranks, Auto::default())?;
    if let Some(wrong) = judge::not_covered(&toggles.rope, &model.config, length) {
        match command.unscaled {
            true => notice(&format!("note: {wrong}")),
            false => bad_input!("{wrong}; or --unscaled to train so all the same"),
        }
    }
    let budget = command.budget.as_deref().map(parse_bytes).transpose()?;
    let (host, _) = host_room(&command.host, auto)?;
    let room = Room { device: budget, host };
    let setting = Setting { profile: Profile::CPU, model: &model.config, toggles, auto, room };
    let plan = setting.plan(length)?;
    if !plan.over().none() {
        bad_input!(
            "out of memory before the first step: {} tokens: {}; `ablation plan --compare` says which toggle helps",
            format_tokens(length),
            plan.verdict()
        );
    }
    if auto.any() {
        notice(&format!("chosen: {}", plan.toggles.describe_keep(model.config.num_hidden_layers)));
    }
    Ok(plan)
}

/// Runs the command.
pub fn train(command: &Train) -> Result<u8> {
    checked(command)?;
    let model = open_model(&command.model)?;
    let (rows, data) = command.data.rows(&model)?;
    let length = rows[0].ids.len() as u64;
    let plan = planned(command, &model, length)?;
    let toggles = &plan.toggles;
    let optimizer = Optimizer {
        learning_rate: command.learning_rate,
        steps: command.steps,
        max_gradient_norm: command.max_grad_norm,
        seed: command.seed,
    };
    notice(&format!(
        "{}: {} parameters, {} rows of {} tokens, one a step, {} steps",
        model.config.name,
        format_tokens(model.config.parameters()),
        rows.len(),
        format_tokens(length),
        command.steps
    ));

    let job = Job { config: &model.config, toggles, optimizer, budget: plan.room.device, rows: &rows, source: &model };
    let log = Log { optimizer, length, rows: rows.len(), start: Instant::now() };
    let weights = Gathered::default();
    let Some(outcome) = run_logged(&job, &log, &weights)? else {
        notice("ended early: nothing was saved");
        return Ok(130);
    };
    let record = record(command, &model, (&job, &log), &data, &plan, &outcome);
    let mut companions = model.companions();
    companions.push(("training.json".to_string(), serde_json::to_vec_pretty(&record)?));
    let trained = Trained(weights.into_inner());
    let trained = Model {
        config: &model.config,
        rope: &toggles.rope,
        dtype: Dtype::F32,
        weights: &trained,
        companions: &companions,
    };
    save(&command.out, &trained)?;
    super::say(&format!("The model: {}", command.out.display()))?;
    Ok(0)
}

/// Runs the steps, tells each, and judges the first; none: it was ended from outside.
fn run_logged(job: &Job, log: &Log, weights: &Gathered) -> Result<Option<Outcome>> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let flag = cancelled.clone();
    on_interrupt(move || flag.swap(true, Relaxed))?;
    let first_norm = Mutex::new(None);
    let exploded = AtomicBool::new(false);
    let (config, toggles) = (job.config, job.toggles);
    let told = |said: Option<String>| said.iter().for_each(|said| notice(&format!("note: {said}")));
    let along = |(first, last)| judge::along(first, last, &toggles.rope, config, log.length);
    let progress = |step: usize, result: &StepResult| {
        let _ = super::say(&log.line(step, result));
        let first = *first_norm.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result.gradient_norm);
        if step == 0 {
            told(judge::first_loss(result.loss, config));
            told(ends(&result.losses, toggles.cp.scheme(), toggles.ranks).and_then(along));
        }
        if result.gradient_norm > judge::EXPLODED * first.max(f64::MIN_POSITIVE) {
            exploded.store(true, Relaxed);
            cancelled.store(true, Relaxed);
        }
    };
    let outcome = run_with(job, &cancelled, &progress, &|trainer| weights.take(trainer, false));
    if toggles.cp.scheme() == Scheme::Ulysses
        && let Some(first) = outcome.steps.first()
    {
        told(ends(&first.losses, Scheme::Whole, 1).and_then(along));
    }
    if exploded.load(Relaxed) {
        bail!(
            "step {}: the gradient norm is more than {:.0} times the first step's: lower the learning rate, or look at \
             the row's text; nothing was saved",
            outcome.steps.len(),
            judge::EXPLODED
        );
    }
    match outcome.error {
        Some(error) if error.is::<Cancelled>() => Ok(None),
        Some(error) => Err(error.context("nothing was saved")),
        None => Ok(Some(outcome)),
    }
}

fn categories(bytes: &Bytes) -> Value {
    let held = Category::ALL.into_iter().filter(|c| bytes.of(*c) > 0);
    held.map(|c| (c.key().to_string(), json!(bytes.of(c)))).collect::<serde_json::Map<_, _>>().into()
}

fn rope(toggles: &Toggles) -> Value {
    match &toggles.rope {
        crate::model::rope::Rope::Default { theta } => json!({ "type": "default", "theta": theta }),
        crate::model::rope::Rope::Yarn(y) => {
            json!({ "type": "yarn", "theta": y.theta, "factor": y.factor, "original_tokens": y.original })
        }
    }
}

/// What training.json says: all that it takes to run it again, and what came of it.
fn record(
    command: &Train,
    model: &Checkpoint,
    (job, log): (&Job, &Log),
    data: &Data,
    plan: &Plan,
    outcome: &Outcome,
) -> Value {
    let (t, machine) = (job.toggles, Machine::here());
    let (inputs, attention) = t.offload.layers();
    let layers = model.config.num_hidden_layers;
    let kept = layers - t.keep.attention_from(layers);
    let fullest = outcome.ranks.iter().max_by_key(|rank| rank.device.bytes.total());
    let held = |rank: Option<&crate::train::world::RankReport>| {
        rank.map(|r| json!({ "device_bytes": categories(&r.device.bytes), "host_bytes": categories(&r.host.bytes) }))
    };
    let step = |(i, s): (usize, &crate::train::world::StepReport)| {
        let mut entry = log.entry(i, s.loss, s.gradient_norm);
        entry["seconds"] = json!(s.seconds);
        entry["valid_targets"] = json!(s.valid_targets);
        entry
    };
    json!({
        "model": { "name": model.config.name, "from": command.model, "parameters": model.config.parameters() },
        "data": data,
        "toggles": {
            "loss": t.loss.describe(), "rope": rope(t), "tile_tokens": t.tile, "every": t.every,
            "keep_attention_layers": kept, "offload_input_layers": inputs.min(layers),
            "offload_attention_layers": attention.min(kept), "cp": t.cp.key(), "ranks": t.ranks, "moments": t.moments.key(),
        },
        "optimizer": {
            "learning_rate": command.learning_rate, "max_grad_norm": command.max_grad_norm, "seed": command.seed,
            "steps": command.steps,
        },
        "steps": outcome.steps.iter().enumerate().map(step).collect::<Vec<_>>(),
        "peak_of_the_fullest_rank": held(fullest),
        "planned_peak_of_a_rank": held(Some(&plan.rank)),
        "program": { "version": machine.program_version, "revision": machine.git_revision, "sha256": machine.program_sha256 },
        "machine": { "device": "cpu", "host": machine.host_name, "cpu": machine.cpu, "cores": machine.cores },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_sequence_as_rank_0_has_them() {
        let mut losses = [3.0f32; 16];
        (losses[14], losses[15]) = (5.0, 0.0);
        assert_eq!(ends(&losses, Scheme::Whole, 1), Some((Some(3.0), Some(5.0))));
        // Of four ranks, rank 0 has eighths; of two, quarters, of which the halves are eighths.
        assert_eq!(ends(&losses, Scheme::Ring, 4), Some((Some(3.0), Some(23.0 / 7.0))));
        assert_eq!(ends(&losses, Scheme::Ring, 2), Some((Some(3.0), Some(11.0 / 3.0))));
        assert_eq!(ends(&losses, Scheme::Ulysses, 2), None);
    }
}
