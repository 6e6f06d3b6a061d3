//! Going on with a ladder that ended early: what is done stays, if it is of the same
//! experiment, text and program.

use std::path::Path;

use anyhow::Result;

use super::experiment::Experiment;
use super::folder::EXPERIMENT;
use super::run::{Ladder, as_planned};
use crate::bad_input;
use crate::record::Records;
use crate::record::parquet::FILES;
use crate::record::run::Run;

/// The experiment that a folder was begun with: its file, or as its first run recorded it.
pub fn experiment(dir: &Path) -> Result<Experiment> {
    let kept = dir.join(EXPERIMENT);
    if kept.is_file() {
        return Experiment::read(&kept);
    }
    match Records::read(dir)?.runs.first() {
        Some(run) => Experiment::parse(&run.experiment_toml, &dir.join(FILES[2]).display().to_string(), dir),
        None => bad_input!("{}: it holds no run to go on with; leave --resume away to begin one", dir.display()),
    }
}

/// Records of the attempts that need not run again. Those that failed otherwise than
/// planned are taken out of the folder, and run again.
pub(super) fn done(ladder: &Ladder, dir: &Path) -> Result<Records> {
    let kept = dir.join(EXPERIMENT);
    if let Ok(there) = std::fs::read_to_string(&kept) {
        same_experiment(dir, &there, ladder)?;
    }
    if !dir.join(FILES[2]).exists() {
        return Ok(Records::default());
    }
    let mut records = Records::read(dir)?;
    for run in &records.runs {
        same_experiment(dir, &run.experiment_toml, ladder)?;
        same_program(dir, run, ladder)?;
        if run.tokens_sha256.as_ref() != Some(&ladder.tokens_sha256) {
            bad_input!("{}: the text or its tokenizer has changed since: {BEGIN_ANEW}", dir.display());
        }
        let attempt = ladder.attempts.get(run.run as usize);
        let planned = attempt.is_some_and(|a| {
            (&a.rung.name, a.purpose.key(), a.length, a.steps)
                == (&run.rung, run.purpose.as_str(), run.length_tokens, run.steps)
        });
        if !planned {
            bad_input!("{}: its run {} is not one that this experiment plans: {BEGIN_ANEW}", dir.display(), run.run);
        }
    }
    let before = records.runs.len();
    records.runs.retain(as_planned);
    if records.runs.len() < before {
        let stays = |number: u32| records.runs.iter().any(|r| r.run == number);
        records.timeline.retain(|p| stays(p.run));
        records.positions.retain(|p| stays(p.run));
        records.write_fewer(dir)?;
    }
    Ok(records)
}

const BEGIN_ANEW: &str = "its records and new ones would not be of one ladder; give another --out to begin anew";

/// Compares what the files mean, not how they are written.
fn same_experiment(dir: &Path, there: &str, ladder: &Ladder) -> Result<()> {
    if there == ladder.toml {
        return Ok(());
    }
    let there = match Experiment::parse(there, &dir.join(EXPERIMENT).display().to_string(), dir) {
        Ok(there) if there == ladder.experiment => return Ok(()),
        Ok(there) => there.to_toml()?,
        Err(error) => bad_input!("{error}; the file has been changed since: {BEGIN_ANEW}"),
    };
    let mut lines = there.lines().zip(ladder.toml.lines()).enumerate();
    let difference = match lines.find(|(_, (there, here))| there != here) {
        Some((number, (there, here))) => format!("line {}: `{there}` there, `{here}` here", number + 1),
        None => format!("{} lines there, {} here", there.lines().count(), ladder.toml.lines().count()),
    };
    bad_input!("{}: it was begun with another experiment or other options ({difference}): {BEGIN_ANEW}", dir.display())
}

fn same_program(dir: &Path, run: &Run, ladder: &Ladder) -> Result<()> {
    let machine = &ladder.machine;
    let there = (&run.program_version[..], &run.git_revision[..], &run.program_sha256);
    if there == (machine.program_version, machine.git_revision, &machine.program_sha256) {
        return Ok(());
    }
    let digest =
        |sha256: &Option<String>| sha256.as_deref().map_or("unknown".to_string(), |s| s[..s.len().min(12)].to_string());
    bad_input!(
        "{}: run {} is of another program ({} {}, SHA-256 {}; this is {} {}, {}): {BEGIN_ANEW}",
        dir.display(),
        run.run,
        run.program_version,
        run.git_revision,
        digest(&run.program_sha256),
        machine.program_version,
        machine.git_revision,
        digest(&machine.program_sha256)
    )
}
