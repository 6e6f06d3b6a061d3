//! `ablation train`: trains a model on rows of one length and saves it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};

use super::common::{on_interrupt, tokenizer};
use super::toggles::{ToggleOptions, host_room, not_covered};
use crate::bad_input;
use crate::data::{Corpus, given};
use crate::device::dry::Profile;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::ModelConfig;
use crate::model::layout::Slot;
use crate::model::save::{Dtype, Model, save};
use crate::notice;
use crate::parallel::shard::WeightSource;
use crate::plan::{Room, Setting};
use crate::train::gathered::{Gathered, Tensors};
use crate::train::step::{Cancelled, Optimizer, StepResult};
use crate::train::toggles::Auto;
use crate::train::world::{Job, Row, run_with};
use crate::units::{format_tokens, parse_bytes, parse_tokens};

/// Train a model on long sequences and save it
#[derive(Debug, clap::Args)]
pub struct Train {
    /// A folder with config.json and safetensors, or a GGUF file
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// A text file (UTF-8), or a folder of .txt files, joined in the order of their names
    #[arg(long, value_name = "PATH", conflicts_with = "tokens", required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// Token ids in place of a text: safetensors with input_ids and, if there, labels
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Tokens of a row, such as 16384 or 1M [default with --tokens: that of its rows]
    #[arg(long, value_name = "TOKENS", required_unless_present = "tokens")]
    length: Option<String>,
    /// Steps; each takes a row, from the first again when they are through
    #[arg(long, value_name = "N", default_value_t = 12)]
    steps: u32,
    /// Rows to train on [default: as many as there are steps, or as the text has]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// The folder for the trained model; it must not exist
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

/// A first loss within this of ln(vocabulary), nats, is not that of trained weights.
const UNTRAINED: f64 = 1.0;
/// A gradient norm that has grown this far over the first step's ends the run.
const EXPLODED: f64 = 1e4;

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

fn rows(command: &Train, model: &Checkpoint) -> Result<Vec<Row>> {
    let length = command.length.as_deref().map(parse_tokens).transpose()?.map(|l| l as usize);
    let wanted = command.rows.unwrap_or(command.steps as usize);
    if wanted == 0 || length.is_some_and(|l| l < 2) {
        bad_input!("give at least one row and one step, of at least 2 tokens");
    }
    let mut rows = match (&command.tokens, &command.text, length) {
        (Some(path), _, length) => {
            let rows = given::read(path, model.config.vocab_size)?;
            if length.is_some_and(|length| rows.iter().any(|r| r.ids.len() != length)) {
                bad_input!("{}: its rows have {} tokens: leave --length away", path.display(), rows[0].ids.len());
            }
            rows
        }
        (None, Some(path), Some(length)) => {
            let tokenizer = tokenizer(model)?;
            let corpus = Corpus::path(path, 0, &tokenizer, Some(length.saturating_mul(wanted)))?;
            let there = (corpus.ids.len() / length).max(1);
            let row = |i| Ok(Row { ids: corpus.row(length, i)?.to_vec(), labels: None });
            (0..there.min(wanted)).map(row).collect::<Result<_>>()?
        }
        _ => bad_input!("give a text with --text and --length, or token ids with --tokens"),
    };
    if let Some(asked) = command.rows.filter(|asked| *asked > rows.len()) {
        bad_input!("{} rows are there, {asked} were asked for: give a longer text or fewer rows", rows.len());
    }
    rows.truncate(wanted);
    Ok(rows)
}

/// A line of the log, as Hugging Face's trainers have it.
fn logged(step: usize, result: &StepResult, rate: f64, tokens: u64, rows: usize, seconds: f64, steps: u32) -> String {
    let left = seconds * f64::from(steps).max(1.0) - seconds * (step + 1) as f64;
    format!(
        "{{'loss': {:.4}, 'grad_norm': {:.4}, 'learning_rate': {rate:.3e}, 'num_tokens': {tokens}, 'epoch': {:.2}}}  \
         {}/{steps}, {seconds:.2} s/it, {:.0} s left",
        result.loss,
        result.gradient_norm,
        (step + 1) as f64 / rows as f64,
        step + 1,
        left.max(0.0)
    )
}

/// What the first step's loss says of weights, text and rope.
fn judged(loss: f64, config: &ModelConfig) -> Option<String> {
    let uniform = (config.vocab_size as f64).ln();
    (loss > uniform - UNTRAINED).then(|| {
        format!(
            "the first loss, {loss:.2}, is near ln(vocabulary) = {uniform:.2}, that of guessing: the weights are untrained, \
             the tokenizer is another model's, or positions are not scaled for this length (YaRN)"
        )
    })
}

/// Runs the command.
pub fn train(command: &Train) -> Result<u8> {
    if command.steps == 0 || !(command.learning_rate.is_finite() && command.learning_rate >= 0.0) {
        bad_input!("steps must be positive, and the learning rate a number, 0 or above");
    }
    if !(command.max_grad_norm.is_finite() && command.max_grad_norm > 0.0) {
        bad_input!("--max-grad-norm must be a number above 0");
    }
    if command.out.exists() {
        bad_input!("{}: it exists already; give another folder for the model", command.out.display());
    }
    let model = Checkpoint::open(&command.model)?;
    let (toggles, auto) = command.toggles.toggles(&model.config, &model.rope, command.ranks, Auto::default())?;
    let budget = command.budget.as_deref().map(parse_bytes).transpose()?;
    let (host, _) = host_room(&command.host, auto)?;
    let rows = rows(command, &model)?;
    let length = rows[0].ids.len() as u64;
    if let Some(wrong) = not_covered(&toggles.rope, &model.config, length) {
        match command.unscaled {
            true => notice(&format!("note: {wrong}")),
            false => bad_input!("{wrong}; or --unscaled to train so all the same"),
        }
    }
    let tokenizer_json = model.tokenizer_json().ok();
    let optimizer = Optimizer {
        learning_rate: command.learning_rate,
        steps: command.steps,
        max_gradient_norm: command.max_grad_norm,
        seed: command.seed,
    };
    let room = Room { device: budget, host };
    let plan = Setting { profile: Profile::CPU, model: &model.config, toggles, auto, room }.plan(length)?;
    if !plan.over().none() {
        bad_input!("{} tokens: {}; `ablation plan` says which toggle helps", format_tokens(length), plan.verdict());
    }
    let toggles = &plan.toggles;
    if auto.any() {
        notice(&format!("chosen: {}", toggles.describe_keep(model.config.num_hidden_layers)));
    }
    notice(&format!(
        "{}: {} parameters, {} rows of {} tokens, {} steps",
        model.config.name,
        model.config.parameters(),
        rows.len(),
        format_tokens(length),
        command.steps
    ));

    let cancelled = Arc::new(AtomicBool::new(false));
    let flag = cancelled.clone();
    on_interrupt(move || flag.swap(true, Relaxed))?;
    let job = Job { config: &model.config, toggles, optimizer, budget, rows: &rows, source: &model };
    let start = Instant::now();
    let first_norm = Mutex::new(None);
    let exploded = AtomicBool::new(false);
    let progress = |step: usize, result: &StepResult| {
        let rate = optimizer.learning_rate_at(step as u32);
        let (tokens, seconds) = (length * (step as u64 + 1), start.elapsed().as_secs_f64() / (step + 1) as f64);
        let _ = super::say(&logged(step, result, rate, tokens, rows.len(), seconds, command.steps));
        let first = *first_norm.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(result.gradient_norm);
        if step == 0
            && let Some(said) = judged(result.loss, &model.config)
        {
            notice(&format!("note: {said}"));
        }
        if result.gradient_norm > EXPLODED * first.max(f64::MIN_POSITIVE) {
            exploded.store(true, Relaxed);
            cancelled.store(true, Relaxed);
        }
    };
    let weights = Gathered::default();
    let outcome = run_with(&job, &cancelled, &progress, &|trainer| weights.take(trainer, false));
    if exploded.load(Relaxed) {
        bail!(
            "step {}: the gradient norm is more than {EXPLODED:.0} times the first step's: lower the learning rate, or look \
             at the row's text; nothing was saved",
            outcome.steps.len()
        );
    }
    match outcome.error {
        Some(error) if error.is::<Cancelled>() => {
            notice("ended early: nothing was saved");
            return Ok(130);
        }
        Some(error) => return Err(error.context("nothing was saved")),
        None => {}
    }
    let trained = Trained(weights.into_inner());
    let trained = Model {
        config: &model.config,
        rope: &toggles.rope,
        dtype: Dtype::F32,
        weights: &trained,
        tokenizer: tokenizer_json.as_deref(),
    };
    save(&command.out, &trained)?;
    super::say(&format!("The model: {}", command.out.display()))?;
    Ok(0)
}
