//! `ablation run`: runs a ladder and renders its report.

use std::path::PathBuf;

use anyhow::Result;

use super::common::{quoted, watched};
use crate::bad_input;
use crate::control::Control;
use crate::ladder::experiment::Experiment;
use crate::ladder::folder::{Folder, last_numbered};
use crate::ladder::run::{Ended, Ladder, notes, plans};
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
    pub experiment: Option<String>,
    /// The folder for records, figures and page [default: the first free of ablation-NAME, ablation-NAME-2 …]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on with a ladder that ended early, in --out or in the last folder of its name:
    /// what is done stays, what failed runs again
    #[arg(long)]
    pub resume: bool,
    /// Run one rung alone, or one setting of a study
    #[arg(long, value_name = "RUNG")]
    pub only: Option<String>,
    /// The model of a study, such as yarn: an id on the hub, a folder or a GGUF file
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Tokens of a study's sequence, such as 32k
    #[arg(long, value_name = "TOKENS")]
    pub length: Option<String>,
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

impl Run {
    /// An option that is given and that a study, which trains nothing, has no use for.
    pub fn of_ladders_alone(&self) -> Option<&'static str> {
        let given = [
            ("--budget", self.budget.is_some()),
            ("--ranks", self.ranks.is_some()),
            ("--steps", self.steps.is_some()),
            ("--seed", self.seed.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
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

/// Runs the command.
pub fn run(command: &Run) -> Result<u8> {
    if let Some((study, begun)) = super::study::meant(command)? {
        return super::study::study(command, study, begun);
    }
    if let Some(option) = [("--model", &command.model), ("--length", &command.length)].iter().find(|o| o.1.is_some()) {
        bad_input!("{} is for studies, such as yarn; a ladder's models and lengths are in its file", option.0);
    }
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

    let work = {
        let dir = dir.clone();
        move |control: &Control| ladder.run(records, &dir, control)
    };
    let ended = watched(work)?;
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
