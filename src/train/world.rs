//! A whole run on CPU ranks, and the plan of one on the dry device.

use std::sync::atomic::AtomicBool;

use anyhow::Result;

use super::ranks::{CpuComm, on_ranks};
use super::step::{Optimizer, StepResult, Trainer};
use super::toggles::Toggles;
use crate::device::cpu::Cpu;
use crate::device::dry::{Dry, Profile};
use crate::device::{Counts, Device};
use crate::memory::ledger::{Ledger, Peak, Place, Segment};
use crate::model::config::ModelConfig;
use crate::parallel::comm::{Comm, DryComm};
use crate::parallel::shard::WeightSource;
use crate::parallel::split::{self, split};

/// A row of text for one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub ids: Vec<u32>,
    /// transformers' labels, aligned with `ids`; none: the ids themselves.
    pub labels: Option<Vec<u32>>,
}

/// All that a run needs to know.
pub struct Job<'a> {
    pub config: &'a ModelConfig,
    pub toggles: &'a Toggles,
    pub optimizer: Optimizer,
    /// Bytes that each rank may hold on its device.
    pub budget: Option<u64>,
    /// A row for each step, from the first again when they are through.
    pub rows: &'a [Row],
    pub source: &'a (dyn WeightSource + Sync),
}

impl Job<'_> {
    /// The row of a step.
    fn row(&self, step: usize) -> &Row {
        &self.rows[step % self.rows.len()]
    }
}

/// What the ledger and the meter of a rank say at the end.
#[derive(Debug, Clone, Default)]
pub struct RankReport {
    pub device: Peak,
    pub host: Peak,
    pub timeline: Vec<Segment>,
    /// Counts of the last step.
    pub counts: Counts,
}

/// One step of a whole run.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    pub loss: f64,
    pub gradient_norm: f64,
    pub seconds: f64,
    /// Loss of each position, in the order of positions, padding left out.
    pub losses: Vec<f32>,
    /// Valid targets of the row.
    pub valid_targets: u64,
}

/// What a run leaves. On an error the ledgers still tell how far it came.
pub struct Outcome {
    pub steps: Vec<StepReport>,
    pub ranks: Vec<RankReport>,
    /// All ranks together, device and host, bytes.
    pub process_peak: u64,
    /// What they still hold after all have ended, bytes: 0 unless something leaks.
    pub left_bytes: u64,
    pub error: Option<anyhow::Error>,
}

fn report(ledger: &Ledger, counts: Counts) -> RankReport {
    RankReport {
        device: ledger.peak(Place::Device),
        host: ledger.peak(Place::Host),
        timeline: ledger.timeline(),
        counts,
    }
}

/// Is called after each step of rank 0, with its number from 0 and what it tells.
pub type Progress<'a> = dyn Fn(usize, &StepResult) + Sync + 'a;

/// Runs the steps on CPU ranks. `progress` is called after each step of rank 0;
/// `cancelled` ends the run at the next layer.
pub fn run(job: &Job, cancelled: &AtomicBool, progress: &Progress) -> Outcome {
    run_with(job, cancelled, progress, &|_| Ok(()))
}

/// As [`run`], and calls `finish` with each rank's trainer after the last step.
pub fn run_with(
    job: &Job,
    cancelled: &AtomicBool,
    progress: &Progress,
    finish: &(dyn Fn(&CpuTrainer) -> Result<()> + Sync),
) -> Outcome {
    #[derive(Default)]
    struct State {
        steps: Vec<RankStep>,
        counts: Counts,
    }
    let work = |device: &Cpu, comm: &CpuComm, state: &mut State| {
        let mut trainer = Trainer::new(device, comm, job.config, job.toggles, job.source, cancelled)?;
        for number in 0..job.optimizer.steps as usize {
            let before = device.meter().read();
            state.steps.push(step(&mut trainer, job, job.row(number))?);
            state.counts = device.meter().read().since(&before);
            if Comm::<Cpu>::rank(comm) == 0 {
                progress(number, &state.steps[number].result);
            }
        }
        finish(&trainer)
    };
    let left = on_ranks(job.toggles.ranks, job.budget, &work, &State::default, &|device, state| {
        (state.steps, report(device.ledger(), state.counts))
    });
    let (steps, ranks): (Vec<Vec<RankStep>>, Vec<RankReport>) = left.results.into_iter().unzip();
    // A rank whose thread was lost leaves no steps that are whole.
    let whole = if ranks.len() == job.toggles.ranks { steps.iter().map(|s| &s[..]).collect() } else { Vec::new() };
    let steps = merge(whole, job);
    Outcome { steps, ranks, process_peak: left.process_peak, left_bytes: left.left_bytes, error: left.error }
}

/// A trainer on a CPU rank.
pub type CpuTrainer<'a> = Trainer<'a, Cpu, CpuComm>;

/// A rank's view of a step.
struct RankStep {
    result: StepResult,
    seconds: f64,
    valid_targets: u64,
}

fn step(trainer: &mut CpuTrainer, job: &Job, row: &Row) -> Result<RankStep> {
    let start = std::time::Instant::now();
    let (scheme, comm) = (job.toggles.cp.scheme(), trainer.comm);
    let (rank, ranks) = (Comm::<Cpu>::rank(comm), job.toggles.ranks);
    let part = split(&row.ids, row.labels.as_deref(), scheme, ranks, rank)?;
    let result = trainer.step(&part, &job.optimizer)?;
    Ok(RankStep { result, seconds: start.elapsed().as_secs_f64(), valid_targets: part.valid_targets })
}

/// Puts the ranks' losses back into the order of positions.
fn merge(ranks: Vec<&[RankStep]>, job: &Job) -> Vec<StepReport> {
    let whole = ranks.iter().map(|r| r.len()).min().unwrap_or(0);
    let scheme = job.toggles.cp.scheme();
    (0..whole)
        .map(|number| {
            let length = job.row(number).ids.len();
            let own: Vec<&[f32]> = ranks.iter().map(|steps| &steps[number].result.losses[..]).collect();
            let losses = split::in_order(&own, length, scheme);
            let first = &ranks[0][number];
            StepReport {
                loss: first.result.loss,
                gradient_norm: first.result.gradient_norm,
                seconds: ranks.iter().map(|r| r[number].seconds).fold(0.0, f64::max),
                losses,
                valid_targets: first.valid_targets,
            }
        })
        .collect()
}

/// What a run of one rank would leave on this program's CPU device; see [`plan_for`].
pub fn plan(config: &ModelConfig, toggles: &Toggles, budget: Option<u64>, length: usize) -> (RankReport, Result<()>) {
    plan_for(Profile::CPU, config, toggles, budget, length)
}

/// What a run of one rank would leave on the device of `profile`, by the dry device: peak,
/// timeline, counts of the last of two steps (from the second on the kept host memory
/// stands). An error is the ledger's refusal. It is the rank that holds the most. Takes no
/// memory that grows with the length.
pub fn plan_for(
    profile: Profile,
    config: &ModelConfig,
    toggles: &Toggles,
    budget: Option<u64>,
    length: usize,
) -> (RankReport, Result<()>) {
    struct Nothing;
    impl WeightSource for Nothing {
        fn read(&self, _: &crate::model::layout::Slot, _: usize, _: &mut [f32]) -> Result<()> {
            Ok(())
        }
    }
    let device = match Dry::new(budget, profile) {
        Ok(device) => device,
        Err(refusal) => return (RankReport::default(), Err(refusal)),
    };
    let comm = DryComm::new(toggles.ranks);
    let never = AtomicBool::new(false);
    let mut counts = Counts::default();
    let mut work = || {
        let mut trainer = Trainer::new(&device, &comm, config, toggles, &Nothing, &never)?;
        let optimizer = Optimizer { learning_rate: 0.0, steps: 2, max_gradient_norm: 1.0, seed: 0 };
        let part = split::shape(length, toggles.cp.scheme(), toggles.ranks);
        for _ in 0..2 {
            let before = device.meter().read();
            trainer.step(&part, &optimizer)?;
            counts = device.meter().read().since(&before);
        }
        Ok(())
    };
    let result = work();
    (report(device.ledger(), counts), result)
}
