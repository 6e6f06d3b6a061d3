//! Running a ladder: attempt after attempt, each on disk, whole, as soon as it ends.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::attempt::{Attempt, Purpose, describe};
use super::experiment::{Experiment, TextSource};
use super::machine::Machine;
use super::recording::{Measured, record};
use crate::bad_input;
use crate::data::{Corpus, Tokenizer, books};
use crate::memory::allocator;
use crate::memory::ledger::OutOfMemory;
use crate::model::init::SeededWeights;
use crate::notice;
use crate::record::Records;
use crate::record::run::Status;
use crate::train::step::{Cancelled, Optimizer};
use crate::train::world::{Job, Row, run};

/// How a ladder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Attempts that failed otherwise than the plan said.
    pub failed: usize,
    /// Ended from outside before the last attempt.
    pub cancelled: bool,
}

/// Bytes of the experiment's text: no tokenizer here makes more tokens of it.
pub fn text_bytes(e: &Experiment) -> Result<u64> {
    match &e.text.source {
        TextSource::Books(names) => names.iter().map(|n| Ok(books::find(n)?.text.len() as u64)).sum(),
        // A file that can't be read is said, with its reason, by the corpus.
        TextSource::Files(paths) => Ok(paths.iter().filter_map(|p| Some(p.metadata().ok()?.len())).sum()),
    }
}

/// The experiment's text as tokens, as many as the longest attempt takes.
pub fn corpus(e: &Experiment, attempts: &[Attempt]) -> Result<Corpus> {
    let tokenizer = match &e.text.tokenizer {
        Some(path) => Tokenizer::from_file(path)?,
        None => Tokenizer::embedded()?,
    };
    if tokenizer.vocab_size() > e.model.vocab_size {
        bad_input!(
            "the tokenizer has {} tokens and the model's vocabulary {}: set model.vocab_size to {} or more",
            tokenizer.vocab_size(),
            e.model.vocab_size,
            tokenizer.vocab_size()
        );
    }
    let needed = attempts.iter().map(|a| (a.length as usize).saturating_mul(a.steps as usize)).max();
    let corpus = match &e.text.source {
        TextSource::Books(names) => Corpus::books(names, &tokenizer, needed)?,
        TextSource::Files(paths) => Corpus::files(paths, &tokenizer, needed)?,
    };
    // Too short a text is said before anything runs.
    attempts.iter().try_for_each(|a| corpus.row(a.length as usize, 0).map(|_| ()))?;
    Ok(corpus)
}

fn bar(total: u64) -> ProgressBar {
    let bar = ProgressBar::new(total);
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed} gone, {eta} to go  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Runs all attempts and writes their records into `dir` as they end.
pub fn ladder(
    e: &Experiment,
    attempts: &[Attempt],
    corpus: &Corpus,
    dir: &Path,
    cancelled: &AtomicBool,
) -> Result<Ended> {
    crate::device::cpu::kernels::warm_up();
    let machine = Machine::here();
    let experiment_toml = e.to_toml()?;
    // Progress is counted in FLOPs: lengths differ by a factor of hundreds.
    let bar = bar(attempts.iter().map(|a| a.flops() / 1_000).sum());
    let mut records = Records::default();
    let mut ended = Ended { failed: 0, cancelled: false };
    for (number, attempt) in attempts.iter().enumerate() {
        bar.set_message(describe(attempt));
        if bar.is_hidden() {
            // Not a terminal: a line an attempt instead of the bar.
            notice(&format!("[{}/{}] {}", number + 1, attempts.len(), describe(attempt)));
        }
        let before = bar.position();
        let per_step = attempt.flops() / 1_000 / u64::from(attempt.steps);
        let measured =
            one(e, attempt, corpus, cancelled, &|step| bar.set_position(before + per_step * (step as u64 + 1)))?;
        bar.set_position(before + attempt.flops() / 1_000);
        if measured.outcome.error.as_ref().is_some_and(|e| e.is::<Cancelled>()) {
            ended.cancelled = true;
            break;
        }
        let (run, timeline, bands) = record(number as u32, e, &experiment_toml, attempt, corpus, &machine, &measured);
        let expected = if attempt.purpose == Purpose::Beyond { Status::OutOfMemory } else { Status::Ok };
        if run.status != expected {
            ended.failed += 1;
            bar.suspend(|| {
                notice(&format!(
                    "{}: {} where the plan said {}: {}",
                    describe(attempt),
                    run.status.key(),
                    expected.key(),
                    run.reason
                ))
            });
        }
        records.runs.push(run);
        records.timeline.extend(timeline);
        records.positions.extend(bands);
        records.write(dir)?;
    }
    bar.finish_and_clear();
    Ok(ended)
}

/// Rows of the attempt's length that the text has.
fn whole_rows(corpus: &Corpus, attempt: &Attempt) -> usize {
    corpus.ids.len() / attempt.length as usize
}

/// What a user should know of the attempts before they run.
pub fn notes(e: &Experiment, attempts: &[Attempt], corpus: &Corpus) -> Vec<String> {
    let mut notes = Vec::new();
    for a in attempts.iter().filter(|a| a.purpose == Purpose::Longest) {
        if !a.rung.toggles.rope.covers(a.length) {
            notes.push(format!(
                "{}: YaRN's factor × original length covers fewer tokens: raise the factor",
                describe(a)
            ));
        }
        let rows = whole_rows(corpus, a);
        if rows < a.steps as usize {
            notes.push(format!("{}: the text has {rows} rows for {} steps: they repeat", describe(a), a.steps));
        }
        let curve = e.rungs.iter().filter(|r| r.name == a.rung.name).flat_map(|r| &r.curve);
        let dropped = curve.filter(|l| **l > a.length).count();
        if dropped > 0 {
            notes.push(format!("{}: {dropped} lengths of its curve are longer and are left out", describe(a)));
        }
    }
    notes
}

/// Runs one attempt and measures it from outside.
fn one(
    e: &Experiment,
    attempt: &Attempt,
    corpus: &Corpus,
    cancelled: &AtomicBool,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Measured> {
    let mut rows = Vec::new();
    for step in 0..(attempt.steps as usize).min(whole_rows(corpus, attempt)) {
        rows.push(Row { ids: corpus.row(attempt.length as usize, step)?.to_vec(), labels: None });
    }
    let optimizer = Optimizer {
        learning_rate: e.learning_rate,
        steps: attempt.steps,
        max_gradient_norm: e.max_grad_norm,
        seed: e.seed,
    };
    let toggles = &attempt.rung.toggles;
    let source = SeededWeights { seed: e.seed };
    let job = Job { config: &e.model, toggles, optimizer, budget: e.budget, rows: &rows, source: &source };
    let started = SystemTime::now();
    let level = allocator::reset_peak();
    let outcome = run(&job, cancelled, progress);
    let peak = allocator::peak().saturating_sub(level);
    Ok(Measured { outcome, started, process_peak: peak })
}

/// The status of an outcome and why it isn't `ok`.
pub(super) fn status(error: Option<&anyhow::Error>) -> (Status, String) {
    match error {
        None => (Status::Ok, String::new()),
        Some(error) if error.is::<OutOfMemory>() => (Status::OutOfMemory, error.to_string()),
        Some(error) => (Status::Failed, format!("{error:#}")),
    }
}
