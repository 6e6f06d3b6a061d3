//! A model on disk: a folder as transformers writes it, or a GGUF file.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::config::ModelConfig;
use super::gguf::Gguf;
use super::layout::Slot;
use super::rope::Rope;
use super::safetensors::Safetensors;
use super::{gguf_tokenizer, hf};
use crate::bad_input;
use crate::parallel::shard::WeightSource;

/// Files of a model in transformers' format beside its weights, of which some may be missing.
pub const BESIDE_WEIGHTS: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
];

/// An open model: its sizes, its own rope, its weights.
pub struct Checkpoint {
    pub path: PathBuf,
    pub config: ModelConfig,
    /// The rope of the files.
    pub rope: Rope,
    weights: Weights,
}

enum Weights {
    Folder(Safetensors),
    Gguf(Box<Gguf>),
}

impl Checkpoint {
    /// Opens a folder or a GGUF file and checks that its weights are those of its config.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if it is neither, is not whole, or is a model
    /// that the step doesn't compute.
    pub fn open(path: &Path) -> Result<Checkpoint> {
        if path.is_dir() {
            let (mut config, rope) = hf::read(&path.join("config.json"))?;
            // "." and ".." have no name of their own.
            let whole = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
            config.name = whole.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let weights = Safetensors::of_model(path)?;
            weights.fits(&config)?;
            return Ok(Checkpoint { path: path.to_path_buf(), config, rope, weights: Weights::Folder(weights) });
        }
        if !path.exists() {
            bad_input!("{}: there is no such model: give a folder with config.json, or a GGUF file", path.display());
        }
        let file = Gguf::open(path)?;
        let (config, rope) = (file.config().clone(), file.rope().clone());
        Ok(Checkpoint { path: path.to_path_buf(), config, rope, weights: Weights::Gguf(Box::new(file)) })
    }

    /// Name and bytes of the files that go with the weights wherever they are saved: the
    /// tokenizer's, and what generation begins with.
    pub fn companions(&self) -> Vec<(String, Vec<u8>)> {
        match &self.weights {
            Weights::Gguf(_) => {
                let tokenizer = self.tokenizer_json().ok();
                tokenizer.map(|text| ("tokenizer.json".to_string(), text.into_bytes())).into_iter().collect()
            }
            Weights::Folder(_) => {
                let names = BESIDE_WEIGHTS.iter().filter(|name| **name != "config.json");
                names.filter_map(|name| Some((name.to_string(), std::fs::read(self.path.join(name)).ok()?))).collect()
            }
        }
    }

    /// The text of the model's tokenizer.json.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if there is none.
    pub fn tokenizer_json(&self) -> Result<String> {
        match &self.weights {
            Weights::Gguf(file) => gguf_tokenizer::json(file),
            Weights::Folder(_) => {
                let path = self.path.join("tokenizer.json");
                match std::fs::read_to_string(&path) {
                    Ok(text) => Ok(text),
                    Err(error) => bad_input!("{}: {error}; or give token ids with --tokens", path.display()),
                }
            }
        }
    }
}

impl WeightSource for Checkpoint {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()> {
        match &self.weights {
            Weights::Folder(files) => files.read(slot, first, out),
            Weights::Gguf(file) => file.read(slot, first, out),
        }
    }
}
