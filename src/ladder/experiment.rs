//! An experiment: a model, a text, a budget, and rungs that add one technique each.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{file, validate};
use crate::bad_input;
use crate::device::dry::Profile;
use crate::model::config::ModelConfig;
use crate::train::toggles::{Auto, Toggles};
use crate::units::format_bytes;

/// A ladder.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    pub name: String,
    pub title: String,
    pub description: String,
    pub seed: u64,
    /// Steps at a rung's longest length.
    pub steps: u32,
    /// Steps at the shorter lengths of the memory curve.
    pub curve_steps: u32,
    /// Learning rate of the first step.
    pub learning_rate: f64,
    /// The global gradient norm is clipped to this.
    pub max_grad_norm: f64,
    pub device: Device,
    /// Bytes that each rank may hold on its device.
    pub budget: Option<u64>,
    pub model: ModelConfig,
    pub text: Text,
    pub rungs: Vec<Rung>,
}

/// What an experiment is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    #[default]
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
}

impl Device {
    /// What plans depend on.
    pub fn profile(self) -> Profile {
        match self {
            Device::Cpu => Profile::CPU,
            Device::Cuda => Profile::GPU,
        }
    }
}

/// What the sequences are made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    pub source: TextSource,
    /// tokenizer.json; none: the built-in one.
    pub tokenizer: Option<PathBuf>,
}

/// Where the text is from.
#[derive(Debug, Clone, PartialEq)]
pub enum TextSource {
    /// Built-in books, joined in this order.
    Books(Vec<String>),
    /// Plain-text files, joined in this order.
    Files(Vec<PathBuf>),
}

/// One setting of the toggles.
#[derive(Debug, Clone, PartialEq)]
pub struct Rung {
    pub name: String,
    /// What it adds, in a line.
    pub adds: String,
    pub toggles: Toggles,
    /// Toggles that the plan chooses at each length.
    pub auto: Auto,
    /// Lengths tried are multiples of this many tokens.
    pub grid: u64,
    /// The rung stops at this length even if longer ones would fit.
    pub stop_at: Option<u64>,
    /// Shorter lengths that are run for the memory curve.
    pub curve: Vec<u64>,
}

/// No experiment file is as long, bytes.
const LONGEST_FILE: u64 = 16 << 20;

/// Experiments in the program.
const BUILT_IN: [(&str, &str); 3] = [
    ("small", include_str!("../../experiments/small.toml")),
    ("guide", include_str!("../../experiments/guide.toml")),
    ("node8", include_str!("../../experiments/node8.toml")),
];

impl Experiment {
    /// A built-in experiment by name, else a file.
    pub fn load(name: &str) -> Result<Experiment> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(built_in, _)| *built_in == name) {
            return Experiment::parse(text, name, Path::new("."));
        }
        Experiment::read(Path::new(name))
    }

    /// An experiment file.
    pub fn read(path: &Path) -> Result<Experiment> {
        let name = path.display().to_string();
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_string(&mut text));
        match read {
            Ok(bytes) if bytes as u64 > LONGEST_FILE => {
                bad_input!("{name}: larger than {}: this is no experiment file", format_bytes(LONGEST_FILE))
            }
            Ok(_) => {}
            Err(error) => {
                let names: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
                bad_input!("`{name}`: {error}; give an experiment file or one of the built-in: {}", names.join(", "))
            }
        };
        Experiment::parse(&text, &name, path.parent().unwrap_or(Path::new(".")))
    }

    /// Reads and checks an experiment file. `name` stands in messages; files that it
    /// names are relative to `folder`.
    pub fn parse(text: &str, name: &str, folder: &Path) -> Result<Experiment> {
        let experiment = file::parse(text, name, folder)?;
        match validate::experiment(&experiment) {
            Ok(()) => Ok(experiment),
            Err(error) => bad_input!("{name}: {error}"),
        }
    }

    /// The file that gives this experiment, every toggle of every rung written out.
    pub fn to_toml(&self) -> Result<String> {
        file::write(self)
    }
}
