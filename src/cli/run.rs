//! `ablation run`: runs a ladder and renders its report.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::common::on_interrupt;
use crate::bad_input;
use crate::ladder::experiment::Experiment;
use crate::ladder::folder::{Folder, last_numbered};
use crate::ladder::run::{Control, Ended, Ladder, notes, plans};
use crate::ladder::{resume, validate};
use crate::notice;
use crate::record::Records;
use crate::record::parquet::FILES;
use crate::train::toggles::ContextParallel;
use crate::units::parse_bytes;

/// Run a ladder: find each rung's longest length, run it, and render the report
#[derive(Debug, Default, clap::Args)]
pub struct Run {
    /// An experiment file, or the name of a built-in experiment [default: small, or with --resume the folder's]
    experiment: Option<String>,
    /// The folder for records, figures and page [default: the first free of ablation-NAME, ablation-NAME-2 …]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on with a ladder that ended early, in --out or in the last folder of its name:
    /// what is done stays, what failed runs again
    #[arg(long)]
    resume: bool,
    /// Run one rung alone
    #[arg(long, value_name = "RUNG")]
    only: Option<String>,
    /// The device to run on
    #[arg(long, value_name = "DEVICE", value_parser = ["cpu"])]
    device: Option<String>,
    /// Bytes that each rank may hold on its device, such as 17MiB or 80GiB
    #[arg(long, value_name = "BYTES")]
    budget: Option<String>,
    /// Ranks of the rungs that split the sequence
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,
    /// Steps at each rung's longest length
    #[arg(long, value_name = "N")]
    steps: Option<u32>,
    /// Seed of the weights and of stochastic rounding
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// The experiment with the command line's changes, checked again.
fn experiment(command: &Run, mut e: Experiment) -> Result<Experiment> {
    let name = e.name.clone();
    if let Some(only) = &command.only {
        let names: Vec<String> = e.rungs.iter().map(|r| r.name.clone()).collect();
        e.rungs.retain(|r| r.name == *only);
        if e.rungs.is_empty() {
            bad_input!("there is no rung `{only}`; `{name}` has {}", names.join(", "));
        }
    }
    if let Some(budget) = &command.budget {
        e.budget = Some(parse_bytes(budget)?);
    }
    if let Some(steps) = command.steps {
        e.steps = steps;
        e.curve_steps = e.curve_steps.min(steps);
    }
    e.seed = command.seed.unwrap_or(e.seed);
    if let Some(ranks) = command.ranks {
        for rung in e.rungs.iter_mut().filter(|r| r.toggles.cp != ContextParallel::None) {
            rung.toggles.ranks = ranks;
        }
    }
    match validate::experiment(&e) {
        Ok(()) => Ok(e),
        Err(error) => bad_input!("{name}: {error}"),
    }
}

/// How long a cancelled run may take to end by itself.
const PATIENCE: Duration = Duration::from_millis(700);

/// Runs the ladder in a thread of its own and waits for it; none: it was cancelled, and a
/// long operation goes on that the end of the process ends.
fn watched(ladder: Arc<Ladder>, records: Records, dir: PathBuf) -> Result<Option<Ended>> {
    let control = Arc::new(Control::default());
    let held = control.clone();
    // Asked twice, it ends at once: what is on disk is whole.
    on_interrupt(move || held.cancelled.swap(true, Relaxed))?;
    let held = control.clone();
    let worker = std::thread::Builder::new().spawn(move || ladder.run(records, &dir, &held))?;
    let mut since = None;
    while !worker.is_finished() {
        if control.cancelled.load(Relaxed) && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            control.leave();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    worker.join().map_err(|_| anyhow!("the ladder's thread panicked"))?.map(Some)
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let shown = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if shown.chars().all(plain) { shown } else { format!("'{}'", shown.replace('\'', r"'\''")) }
}

/// Runs the command.
pub fn run(command: &Run) -> Result<u8> {
    let given = command.experiment.as_deref().map(Experiment::load).transpose()?;
    let begun = match (&command.out, command.resume) {
        (_, false) => None,
        (Some(out), true) => Some(Folder::begun(out)?),
        (None, true) => Some(Folder::begun(&last_numbered(given.as_ref().map(|e| &e.name[..]))?)?),
    };
    let given = match (given, &begun) {
        (Some(given), _) => given,
        (None, Some(folder)) => resume::experiment(&folder.path)?,
        (None, None) => Experiment::load("small")?,
    };
    let ladder = experiment(command, given)?;
    let ladder = Ladder::new(ladder)?;
    let (folder, records) = match begun {
        Some(folder) => {
            let records = ladder.done(&folder.path)?;
            notice(&format!(
                "{}: {} of {} runs are done",
                folder.path.display(),
                records.runs.len(),
                ladder.attempts.len()
            ));
            (folder, records)
        }
        None => {
            let folder = match &command.out {
                Some(out) => Folder::empty(out)?,
                None => Folder::numbered(&ladder.experiment.name)?,
            };
            (folder, Records::default())
        }
    };
    folder.keep_experiment(&ladder.toml)?;
    let dir = folder.path.clone();
    for plan in plans(&ladder) {
        notice(&plan);
    }
    for note in notes(&ladder) {
        notice(&format!("note: {note}"));
    }

    let ended = watched(Arc::new(ladder), records, dir.clone())?;
    let cancelled = ended.is_none_or(|e| e.cancelled);
    if cancelled {
        notice(&format!("ended early; to go on: ablation run --resume --out {}", quoted(&dir)));
        if !dir.join(FILES[2]).exists() {
            return Ok(130);
        }
    }
    let report = crate::report::render(&dir)?;
    super::say(&report.summary)?;
    Ok(match ended {
        _ if cancelled => 130,
        Some(Ended { failed: 0, .. }) => 0,
        _ => 1,
    })
}
