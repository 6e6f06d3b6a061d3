//! The TOML of an experiment file.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::count::{BYTES, Count, TOKENS};
use super::experiment::{Device, Experiment, Rung, Text, TextSource};
use super::toggles_file::{TogglesFile, resolve, spell};
use crate::bad_input;
use crate::model::config::ModelConfig;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ExperimentFile {
    name: String,
    title: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    seed: u64,
    steps: u32,
    #[serde(default)]
    curve_steps: Option<u32>,
    #[serde(default = "guide_learning_rate")]
    learning_rate: f64,
    #[serde(default = "one")]
    max_grad_norm: f64,
    #[serde(default)]
    device: Device,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    budget: Option<Count<BYTES>>,
    model: ModelConfig,
    text: TextFile,
    #[serde(default)]
    toggles: TogglesFile,
    #[serde(default)]
    rung: Vec<RungFile>,
}

/// The guide's.
fn guide_learning_rate() -> f64 {
    2e-5
}

fn one() -> f64 {
    1.0
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TextFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    books: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    files: Option<Vec<PathBuf>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokenizer: Option<PathBuf>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct RungFile {
    name: String,
    #[serde(default)]
    adds: String,
    grid: Count<TOKENS>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop_at: Option<Count<TOKENS>>,
    #[serde(default)]
    curve: Vec<Count<TOKENS>>,
    #[serde(default)]
    toggles: TogglesFile,
}

/// Nesting beyond this is refused before the parser, which recurses, sees it.
const DEEPEST: usize = 64;

fn too_deep(text: &str) -> bool {
    let mut depth = 0usize;
    text.bytes().any(|b| {
        match b {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > DEEPEST
    })
}

/// Reads an experiment; see [`Experiment::parse`].
pub(super) fn parse(text: &str, name: &str, folder: &Path) -> Result<Experiment> {
    if too_deep(text) {
        bad_input!("{name}: brackets nested more than {DEEPEST} deep: this is no experiment file");
    }
    let file: ExperimentFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => {
            let place = error.span().map(|span| line_and_column(text, span.start));
            let place = place.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
            bad_input!("{name}{place}: {}", with_nearest(error.message()))
        }
    };
    let source = match (file.text.books, file.text.files) {
        (Some(books), None) => TextSource::Books(books),
        (None, Some(files)) => {
            let files: Result<Vec<PathBuf>> = files.iter().map(|f| whole(name, folder, f)).collect();
            TextSource::Files(files?)
        }
        _ => bad_input!("{name}: [text] needs either `books` or `files`"),
    };
    let text = Text { source, tokenizer: file.text.tokenizer.map(|t| whole(name, folder, &t)).transpose()? };
    let theta = file.model.rope_theta;
    let mut rungs = Vec::new();
    for rung in file.rung {
        let (toggles, auto) = match resolve(&file.toggles, rung.toggles, theta) {
            Ok(resolved) => resolved,
            Err(error) => bad_input!("{name}: rung `{}`: {error}", rung.name),
        };
        rungs.push(Rung {
            name: rung.name,
            adds: rung.adds,
            toggles,
            auto,
            grid: rung.grid.0,
            stop_at: rung.stop_at.map(|c| c.0),
            curve: rung.curve.into_iter().map(|c| c.0).collect(),
        });
    }
    Ok(Experiment {
        name: file.name,
        title: file.title,
        description: file.description,
        seed: file.seed,
        steps: file.steps,
        curve_steps: file.curve_steps.unwrap_or(file.steps),
        learning_rate: file.learning_rate,
        max_grad_norm: file.max_grad_norm,
        device: file.device,
        budget: file.budget.map(|b| b.0),
        model: file.model,
        text,
        rungs,
    })
}

/// A path of the file's as it stands on the disk, so that what is written back can stand
/// anywhere, and the same file has one spelling.
fn whole(name: &str, folder: &Path, path: &Path) -> Result<PathBuf> {
    let path = folder.join(path);
    let path = path.canonicalize().or_else(|_| std::path::absolute(&path)).unwrap_or(path);
    match path.to_str() {
        Some(_) => Ok(path),
        None => bad_input!("{name}: {}: the path is not UTF-8, and can't be recorded: move the file", path.display()),
    }
}

fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    (
        before.iter().filter(|b| **b == b'\n').count() + 1,
        String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
    )
}

/// Adds the nearest known name to serde's "unknown field `x`, expected one of `a`, `b`".
fn with_nearest(message: &str) -> String {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((wrong, known)) if message.starts_with("unknown ") => {
            let nearest = known.iter().max_by(|a, b| {
                let near = |x: &str| strsim::jaro_winkler(wrong, x);
                near(a).total_cmp(&near(b))
            });
            match nearest {
                Some(nearest) => format!("{message}; did you mean `{nearest}`?"),
                None => message.to_string(),
            }
        }
        _ => message.to_string(),
    }
}

/// Writes an experiment; see [`Experiment::to_toml`].
pub(super) fn write(experiment: &Experiment) -> Result<String> {
    let e = experiment.clone();
    let (books, files) = match e.text.source {
        TextSource::Books(books) => (Some(books), None),
        TextSource::Files(files) => (None, Some(files)),
    };
    let rung = |r: Rung| RungFile {
        name: r.name,
        adds: r.adds,
        grid: Count(r.grid),
        stop_at: r.stop_at.map(Count),
        curve: r.curve.into_iter().map(Count).collect(),
        toggles: spell(&r.toggles, r.auto),
    };
    let file = ExperimentFile {
        name: e.name,
        title: e.title,
        description: e.description,
        seed: e.seed,
        steps: e.steps,
        curve_steps: Some(e.curve_steps),
        learning_rate: e.learning_rate,
        max_grad_norm: e.max_grad_norm,
        device: e.device,
        budget: e.budget.map(Count),
        model: e.model,
        text: TextFile { books, files, tokenizer: e.text.tokenizer },
        toggles: TogglesFile::default(),
        rung: e.rungs.into_iter().map(rung).collect(),
    };
    Ok(toml::to_string(&file)?)
}
