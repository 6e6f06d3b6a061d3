//! `ablation run`: runs a ladder and renders its report.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::Result;

use crate::bad_input;
use crate::ladder::attempt::attempts;
use crate::ladder::experiment::Experiment;
use crate::ladder::{run, validate};
use crate::notice;
use crate::record::parquet::FILES;
use crate::train::toggles::ContextParallel;
use crate::units::parse_bytes;

/// Run a ladder: find each rung's longest length, run it, and render the report
#[derive(Debug, Default, clap::Args)]
pub struct Run {
    /// An experiment file, or the name of a built-in experiment [default: small]
    experiment: Option<String>,
    /// The folder for records, figures and page [default: the first free of ablation-NAME, ablation-NAME-2 …]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
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
fn experiment(command: &Run) -> Result<Experiment> {
    let name = command.experiment.as_deref().unwrap_or("small");
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

/// The first folder of this name that isn't there yet.
fn free_folder(name: &str) -> PathBuf {
    let numbered =
        |n: u32| PathBuf::from(if n == 1 { format!("ablation-{name}") } else { format!("ablation-{name}-{n}") });
    (1..).map(numbered).find(|p| !p.exists()).unwrap_or_else(|| numbered(1))
}

/// Makes the folder and shows that it can be written to.
fn prepare(dir: &Path) -> Result<()> {
    let mut written = FILES.iter().chain(&["report.md", "report.html", "figures"]);
    if let Some(file) = written.find(|f| dir.join(f).exists()) {
        bad_input!("{} holds {file} already, which would be lost: give another --out, or move it away", dir.display());
    }
    let probe = dir.join(".ablation-probe");
    let made = std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&probe, b""))
        .and_then(|()| std::fs::remove_file(&probe));
    match made {
        Ok(()) => Ok(()),
        Err(error) => bad_input!("{}: {error}; give a folder that can be written to with --out", dir.display()),
    }
}

/// Runs the command.
pub fn run(command: &Run) -> Result<u8> {
    let e = experiment(command)?;
    let attempts = attempts(&e, run::text_bytes(&e)?)?;
    let corpus = run::corpus(&e, &attempts)?;
    let dir = command.out.clone().unwrap_or_else(|| free_folder(&e.name));
    prepare(&dir)?;

    for note in run::notes(&e, &attempts, &corpus) {
        notice(&format!("note: {note}"));
    }

    let cancelled = Arc::new(AtomicBool::new(false));
    let flag = cancelled.clone();
    ctrlc::set_handler(move || flag.store(true, Relaxed))?;
    let ended = run::ladder(&e, &attempts, &corpus, &dir, &cancelled)?;
    if ended.cancelled && !dir.join(FILES[0]).exists() {
        notice(&format!("ended before the first run was done: {} holds nothing", dir.display()));
        return Ok(130);
    }
    let report = crate::report::render(&dir)?;
    super::say(&report.summary)?;
    Ok(match (ended.cancelled, ended.failed) {
        (true, _) => 130,
        (false, 0) => 0,
        (false, _) => 1,
    })
}
