//! `ablation run`: runs a ladder and renders its report.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::bad_input;
use crate::ladder::experiment::Experiment;
use crate::ladder::folder::{EXPERIMENT, Folder, last_numbered};
use crate::ladder::run::{Ended, Ladder, notes, plans};
use crate::ladder::validate;
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
fn experiment(command: &Run, name: &str) -> Result<Experiment> {
    let mut e = Experiment::load(name)?;
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
    let cancelled = Arc::new(AtomicBool::new(false));
    let flag = cancelled.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Relaxed) {
            // Asked twice: at once. What is on disk is whole.
            std::process::exit(130);
        }
    })?;
    let flag = cancelled.clone();
    let worker = std::thread::Builder::new().spawn(move || ladder.run(records, &dir, &flag))?;
    let mut since = None;
    while !worker.is_finished() {
        if cancelled.load(Relaxed) && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    worker.join().map_err(|_| anyhow!("the ladder's thread panicked"))?.map(Some)
}

/// Runs the command.
pub fn run(command: &Run) -> Result<u8> {
    let name = command.experiment.as_deref();
    let begun = match (&command.out, command.resume) {
        (_, false) => None,
        (Some(out), true) => Some(out.clone()),
        // A folder's name is that of the experiment in it.
        (None, true) => Some(last_numbered(&experiment(command, name.unwrap_or("small"))?.name)?),
    };
    let begun = begun.map(|path| Folder::begun(&path)).transpose()?;
    let ladder = match (name, &begun) {
        (None, Some(folder)) => experiment(command, &folder.path.join(EXPERIMENT).to_string_lossy())?,
        (name, _) => experiment(command, name.unwrap_or("small"))?,
    };
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
        notice(&format!("ended early; to go on: ablation run --resume --out {}", dir.display()));
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
