//! Running a ladder: attempt after attempt, each on disk, whole, as soon as it ends.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::attempt::{Attempt, Purpose, attempts, describe, none_starts};
use super::experiment::{Device, Experiment, TextSource};
use super::machine::Machine;
use super::recording::{Measured, record};
use super::resume;
use crate::bad_input;
use crate::control::Control;
use crate::data::{Corpus, Tokenizer, books};
use crate::hash::sha256_of_ids;
use crate::memory::allocator;
use crate::memory::category::Category;
use crate::memory::host::HostMemory;
use crate::memory::ledger::OutOfMemory;
use crate::model::init::SeededWeights;
use crate::notice;
use crate::progress;
use crate::record::Records;
use crate::record::run::{Run, Status};
use crate::train::step::{Cancelled, Optimizer};
use crate::train::world::{Job, Outcome, Progress, Row, run};
use crate::units::format_bytes;

/// A ladder, ready to run.
pub struct Ladder {
    pub experiment: Experiment,
    /// The experiment's file, every toggle written out.
    pub toml: String,
    pub attempts: Vec<Attempt>,
    pub corpus: Corpus,
    /// Of the corpus's token ids, in hex.
    pub tokens_sha256: String,
    pub machine: Machine,
}

/// How a ladder ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Attempts that failed otherwise than the plan said.
    pub failed: usize,
    /// Ended from outside before the last attempt.
    pub cancelled: bool,
}

/// Bytes of the experiment's text: no tokenizer here makes more tokens of it.
fn text_bytes(e: &Experiment) -> Result<u64> {
    match &e.text.source {
        TextSource::Books(names) => names.iter().map(|n| Ok(books::find(n)?.text.len() as u64)).sum(),
        // A file that can't be read is said, with its reason, by the corpus.
        TextSource::Files(paths) => Ok(paths.iter().filter_map(|p| Some(p.metadata().ok()?.len())).sum()),
    }
}

/// The experiment's text as tokens, as many as the longest attempt takes.
fn corpus(e: &Experiment, attempts: &[Attempt]) -> Result<Corpus> {
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
    let started = || attempts.iter().filter(|a| a.refusal.is_none());
    let needed = started().map(|a| (a.length as usize).saturating_mul(a.steps as usize)).max();
    let corpus = match &e.text.source {
        TextSource::Books(names) => Corpus::books(names, &tokenizer, needed)?,
        TextSource::Files(paths) => Corpus::files(paths, &tokenizer, needed)?,
    };
    // Too short a text is said before anything runs.
    started().try_for_each(|a| corpus.row(a.length as usize, 0).map(|_| ()))?;
    Ok(corpus)
}

/// Refuses attempts that would take more than the machine has: all ranks of a run are in
/// this process, their devices and what they keep in host memory alike.
fn fit_the_host(attempts: &mut [Attempt], limit: u64) {
    for a in attempts {
        let rank = a.planned.device.bytes.total() + a.planned.host.bytes.total();
        let all = rank.saturating_mul(a.rung.toggles.ranks as u64);
        if all > limit && a.refusal.is_none() {
            let mut reason = format!(
                "{}: its {} ranks would take {} of this machine's memory, of which this process may have {}: lower \
                 the budget or stop_at, or run the other rungs with --only; a rank would hold:",
                describe(a),
                a.rung.toggles.ranks,
                format_bytes(all),
                format_bytes(limit)
            );
            for (place, held) in [("device", &a.planned.device.bytes), ("host", &a.planned.host.bytes)] {
                for category in Category::ALL.into_iter().filter(|c| held.of(*c) > 0) {
                    let bytes = format_bytes(held.of(category));
                    reason += &format!("\n  {:<28} {bytes:>12}", format!("{} ({place})", category.label()));
                }
            }
            a.refusal = Some(reason);
        }
    }
}

impl Ladder {
    /// Plans an experiment's attempts and reads its text.
    pub fn new(experiment: Experiment) -> Result<Ladder> {
        if experiment.device == Device::Cuda {
            bad_input!(
                "experiment `{}` is for GPUs, and this version computes on the CPU: plan it with `ablation plan`, or \
                 set device = \"cpu\"",
                experiment.name
            );
        }
        let mut attempts = attempts(&experiment, text_bytes(&experiment)?)?;
        if let Some(memory) = HostMemory::here() {
            fit_the_host(&mut attempts, memory.limit());
            none_starts(&attempts)?;
        }
        let corpus = corpus(&experiment, &attempts)?;
        let toml = experiment.to_toml()?;
        let machine = Machine::here();
        let tokens_sha256 = sha256_of_ids(&corpus.ids);
        Ok(Ladder { experiment, toml, attempts, corpus, tokens_sha256, machine })
    }

    /// What an earlier run of this ladder left in `dir` and needs not run again; an error
    /// if what is there is of another experiment, text or program.
    pub fn done(&self, dir: &Path) -> Result<Records> {
        resume::done(self, dir)
    }

    /// Runs the attempts that `records` lacks and writes all records into `dir` as they end.
    pub fn run(&self, mut records: Records, dir: &Path, control: &Control) -> Result<Ended> {
        crate::device::cpu::kernels::warm_up();
        let attempts = &self.attempts;
        // Progress is counted in FLOPs: lengths differ by a factor of hundreds.
        let total = attempts.iter().map(|a| a.flops() / 1_000).sum();
        let bar = progress::bar(total, "{bar:30} {percent:>3} %  {elapsed} gone, {eta} to go  {msg}");
        let mut ended = Ended { failed: 0, cancelled: false };
        for (number, attempt) in attempts.iter().enumerate() {
            if records.runs.iter().any(|r| r.run as usize == number) {
                bar.inc(attempt.flops() / 1_000);
                bar.reset_eta();
                continue;
            }
            bar.set_message(describe(attempt));
            if bar.is_hidden() {
                // Not a terminal: a line an attempt instead of the bar.
                notice(&format!("[{}/{}] {}", number + 1, attempts.len(), describe(attempt)));
            }
            let before = bar.position();
            let per_step = attempt.flops() / 1_000 / u64::from(attempt.steps);
            let progress = |step: usize, _: &_| bar.set_position(before + per_step * (step as u64 + 1));
            let measured = match attempt.refusal {
                Some(_) => nothing(),
                None => one(self, attempt, &control.cancelled, &progress)?,
            };
            bar.set_position(before + attempt.flops() / 1_000);
            if measured.outcome.error.as_ref().is_some_and(|e| e.is::<Cancelled>()) {
                ended.cancelled = true;
                break;
            }
            let (run, timeline, bands) = record(number as u32, self, attempt, &measured);
            if !as_planned(&run) {
                ended.failed += 1;
                let expected = expected(&run.purpose).key();
                let said = format!(
                    "{}: {} where the plan said {expected}: {}",
                    describe(attempt),
                    run.status.key(),
                    run.reason
                );
                bar.suspend(|| notice(&said));
            }
            records.add(run, timeline, bands);
            let write = || {
                records.write(dir).context("what ended before this run is whole: make room, and go on with --resume")
            };
            if control.write(write)?.is_none() {
                ended.cancelled = true;
                break;
            }
        }
        bar.finish_and_clear();
        Ok(ended)
    }
}

fn expected(purpose: &str) -> Status {
    if purpose == Purpose::Beyond.key() { Status::OutOfMemory } else { Status::Ok }
}

/// Whether a run ended as the plan said; what was refused did not begin.
pub(super) fn as_planned(run: &Run) -> bool {
    run.status == expected(&run.purpose) || run.status == Status::Refused
}

/// Rows of the attempt's length that the text has.
fn whole_rows(corpus: &Corpus, attempt: &Attempt) -> usize {
    corpus.ids.len() / attempt.length as usize
}

/// The plan of each rung at its longest length, a line each; and what is refused.
pub fn plans(ladder: &Ladder) -> Vec<String> {
    let line = |a: &Attempt| match &a.refusal {
        Some(reason) => Some(format!("refused: {}: {}", describe(a), reason.lines().next().unwrap_or_default())),
        None if a.purpose == Purpose::Longest => Some(format!("plan: {}", a.plan_line(ladder.experiment.budget))),
        None => None,
    };
    ladder.attempts.iter().filter_map(line).collect()
}

/// What a user should know of the attempts before they run.
pub fn notes(ladder: &Ladder) -> Vec<String> {
    let (e, corpus) = (&ladder.experiment, &ladder.corpus);
    let mut notes = Vec::new();
    for a in ladder.attempts.iter().filter(|a| a.purpose == Purpose::Longest && a.refusal.is_none()) {
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

/// What an attempt leaves that is not started.
fn nothing() -> Measured {
    let outcome = Outcome { steps: Vec::new(), ranks: Vec::new(), process_peak: 0, left_bytes: 0, error: None };
    Measured { outcome, started: SystemTime::now(), process_peak: 0 }
}

/// Runs one attempt and measures it from outside.
fn one(ladder: &Ladder, attempt: &Attempt, cancelled: &AtomicBool, progress: &Progress) -> Result<Measured> {
    let (e, corpus) = (&ladder.experiment, &ladder.corpus);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// failures.md 32: what all ranks hold, offloaded activations included, is within what
    /// the process may have, or nothing starts.
    #[test]
    fn attempts_beyond_the_machines_memory_are_refused() {
        let mut e = Experiment::load("small").unwrap();
        e.rungs.retain(|r| r.name == "offload" || r.name == "ulysses");
        let mut attempts = attempts(&e, 1 << 22).unwrap();
        let needs =
            |a: &Attempt| (a.planned.device.bytes.total() + a.planned.host.bytes.total()) * a.rung.toggles.ranks as u64;
        let most = attempts.iter().map(needs).max().unwrap();
        assert!(attempts.iter().any(|a| a.planned.host.bytes.total() > 0));
        fit_the_host(&mut attempts, most);
        assert!(attempts.iter().all(|a| a.refusal.is_none()));
        fit_the_host(&mut attempts, most - 1);
        none_starts(&attempts).unwrap();
        let refused: Vec<&Attempt> = attempts.iter().filter(|a| a.refusal.is_some()).collect();
        assert_eq!(refused.len(), 1);
        let reason = refused[0].refusal.as_deref().unwrap();
        assert!(reason.contains("ulysses at 6,144 tokens: its 4 ranks would take"), "{reason}");
        assert!(reason.contains("layer inputs (host)") && reason.contains("weights (device)"), "{reason}");
        fit_the_host(&mut attempts, 1);
        let error = none_starts(&attempts).unwrap_err();
        assert!(error.is::<crate::error::BadInput>());
    }
}
