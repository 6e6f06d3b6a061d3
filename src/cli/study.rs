//! A study from the command line: `ablation run` of a file with settings, and `ablation loss`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use serde_json::json;

use super::common::{open_model, quoted, tokenizer, watched};
use super::run::Run;
use crate::bad_input;
use crate::control::Control;
use crate::ladder::folder::{EXPERIMENT, Folder, last_numbered};
use crate::notice;
use crate::record::losses::{LossBand, read_losses};
use crate::study::run::Ready;
use crate::study::{Study, file};
use crate::train::judge;
use crate::units::parse_tokens;

/// The study that the command line means, if it means one and no ladder.
pub fn meant(command: &Run) -> Result<Option<(Study, Option<PathBuf>)>> {
    let begun = match (&command.out, command.resume, &command.experiment) {
        (_, false, _) => None,
        (Some(out), true, _) => Some(out.clone()),
        (None, true, Some(name)) if file::built_in(name).is_some() => Some(last_numbered(Some(name))?),
        // A ladder's or a study's, whichever was last.
        (None, true, None) => last_numbered(None).ok(),
        (None, true, Some(_)) => None,
    };
    let kept = begun.as_ref().map(|folder| folder.join(EXPERIMENT));
    let (text, shown, folder) = match (&command.experiment, &kept) {
        (Some(name), _) => match file::built_in(name) {
            Some(text) => (Some(text.to_string()), name.clone(), PathBuf::new()),
            None => {
                let path = Path::new(name);
                let small = path.metadata().is_ok_and(|m| m.is_file() && m.len() < 1 << 20);
                let text = if small { std::fs::read_to_string(path).ok() } else { None };
                (text, name.clone(), path.parent().unwrap_or(Path::new("")).to_path_buf())
            }
        },
        (None, Some(kept)) => (std::fs::read_to_string(kept).ok(), kept.display().to_string(), PathBuf::new()),
        (None, None) => return Ok(None),
    };
    match text.filter(|text| file::is_study(text)) {
        Some(text) => Ok(Some((changed(command, file::parse(&text, &shown, &folder)?)?, begun))),
        None => Ok(None),
    }
}

/// The study with the command line's changes.
fn changed(command: &Run, mut study: Study) -> Result<Study> {
    if let Some(option) = command.of_ladders_alone() {
        bad_input!("{option} is for ladders; `{}` is a study, which trains nothing: take it away", study.name);
    }
    if let Some(only) = &command.only {
        let names: Vec<String> = study.settings.iter().map(|s| s.name.clone()).collect();
        study.settings.retain(|s| s.name == *only);
        if study.settings.is_empty() {
            bad_input!("there is no setting `{only}`; `{}` has {}", study.name, names.join(", "));
        }
    }
    if let Some(model) = &command.model {
        study.model = model.clone();
    }
    if let Some(length) = &command.length {
        study.length = Some(parse_tokens(length)?);
    }
    Ok(study)
}

/// Runs a study; `begun`: goes on in this folder.
pub fn study(command: &Run, study: Study, begun: Option<PathBuf>) -> Result<u8> {
    let model = open_model(&study.model)?;
    let ready = Ready::new(study, model, &tokenizer)?;
    let (folder, bands) = match (begun, &command.out) {
        (Some(path), _) => {
            let folder = Folder::begun(&path)?;
            let bands = ready.done(&folder.path)?;
            (folder, bands)
        }
        (None, Some(out)) => (Folder::empty(out)?, Vec::new()),
        (None, None) => (Folder::numbered(&ready.study.name)?, Vec::new()),
    };
    finish(ready, folder, bands, false)
}

/// Evaluates what `bands` lacks into the folder, and shows what it found.
pub fn finish(ready: Ready, folder: Folder, bands: Vec<LossBand>, as_json: bool) -> Result<u8> {
    folder.keep_experiment(&ready.toml)?;
    let dir = folder.path.clone();
    let ready = Arc::new(ready);
    let work = {
        let (ready, dir) = (ready.clone(), dir.clone());
        move |control: &Control| ready.run(bands, &dir, control)
    };
    let whole = watched(work)?.unwrap_or(false);
    let is_study = ready.study.settings.len() > 1;
    if !whole {
        let how = format!("; to go on: ablation run --resume --out {}", quoted(&dir));
        notice(&format!("ended early{}", if is_study && !as_json { how } else { String::new() }));
        return Ok(130);
    }
    let bands = read_losses(&dir)?;
    let mut told: Option<u32> = None;
    for band in bands.iter().filter(|b| told.replace(b.setting_number) != Some(b.setting_number)) {
        let setting = &ready.study.settings[band.setting_number as usize];
        let rope = setting.rope.of(&ready.model)?;
        let (config, length) = (&ready.model.config, ready.length());
        let said = judge::along(band.first_eighth_loss, band.last_eighth_loss, &rope, config, length)
            .or_else(|| judge::not_covered(&rope, config, length));
        said.iter().for_each(|said| notice(&format!("note: {}: {said}", band.setting)));
    }
    if as_json {
        super::say(&serde_json::to_string_pretty(&as_value(&bands))?)?;
        return Ok(0);
    }
    let report = crate::report::render(&dir)?;
    super::say(&format!("{}\n{}", crate::report::by_position(&bands), report.summary))?;
    Ok(0)
}

/// One setting as JSON.
fn as_value(bands: &[LossBand]) -> serde_json::Value {
    let Some(b) = bands.first() else { return json!({}) };
    let band =
        |b: &LossBand| json!({ "start": b.start_token, "end": b.end_token, "targets": b.targets, "loss": b.band_loss });
    json!({
        "model": b.model, "length": b.length_tokens, "targets": b.valid_targets, "yarn_factor": b.yarn_factor,
        "loss": b.mean_loss, "first_eighth": b.first_eighth_loss, "last_eighth": b.last_eighth_loss,
        "unigram_entropy": b.unigram_entropy, "tokens_sha256": b.tokens_sha256, "seconds": b.seconds,
        "bands": bands.iter().map(band).collect::<Vec<_>>(),
    })
}
