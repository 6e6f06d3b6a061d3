//! A trained model as a folder that transformers and candle-transformers load.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use half::bf16;
use serde_json::json;

use super::config::ModelConfig;
use super::layout::{Slot, units};
use super::rope::Rope;
use super::safetensors::{INDEX, SINGLE};
use super::{hf, layout};
use crate::bad_input;
use crate::parallel::shard::WeightSource;

/// No file of weights is larger than this, bytes.
pub const LARGEST_FILE: u64 = 5_000_000_000;

/// The type that weights are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    Bf16,
    F32,
}

impl Dtype {
    fn bytes(self) -> u64 {
        match self {
            Dtype::Bf16 => 2,
            Dtype::F32 => 4,
        }
    }

    /// In a safetensors header, and in config.json.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Dtype::Bf16 => ("BF16", "bfloat16"),
            Dtype::F32 => ("F32", "float32"),
        }
    }
}

/// A model to be written.
pub struct Model<'a> {
    pub config: &'a ModelConfig,
    /// The rope in force.
    pub rope: &'a Rope,
    pub dtype: Dtype,
    pub weights: &'a dyn WeightSource,
    /// Name and bytes of the files beside the weights: the tokenizer's, a record.
    pub companions: &'a [(String, Vec<u8>)],
}

/// Writes a model into `folder`, which must not exist: under a temporary name beside it
/// first, then moved into place.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if the folder exists; otherwise what the disk says,
/// with nothing left behind.
pub fn save(folder: &Path, model: &Model) -> Result<()> {
    save_in_files_of(LARGEST_FILE, folder, model)
}

fn save_in_files_of(largest: u64, folder: &Path, model: &Model) -> Result<()> {
    if folder.exists() {
        bad_input!("{}: it exists already; give another folder for the model", folder.display());
    }
    let mut name = folder.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    let partial = folder.with_file_name(name);
    let _ = std::fs::remove_dir_all(&partial);
    let written: Result<()> = (|| {
        std::fs::create_dir_all(&partial)?;
        write_weights(&partial, model, largest)?;
        write(&partial.join("config.json"), hf::write(model.config, model.rope, model.dtype.names().1).as_bytes())?;
        for (name, bytes) in model.companions {
            write(&partial.join(name), bytes)?;
        }
        std::fs::rename(&partial, folder)?;
        Ok(())
    })();
    if written.is_err() {
        let _ = std::fs::remove_dir_all(&partial);
    }
    written.with_context(|| format!("could not write the model to {}", folder.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// Writes the tensors in files of at most `largest` bytes (a larger tensor has one of its own).
fn write_weights(folder: &Path, model: &Model, largest: u64) -> Result<()> {
    let (dtype, weights) = (model.dtype, model.weights);
    let units: Vec<layout::UnitLayout> = units(model.config);
    let size = |slot: &Slot| (slot.rows * slot.cols) as u64 * dtype.bytes();
    let mut files: Vec<Vec<&Slot>> = vec![Vec::new()];
    let mut held = 0;
    for slot in units.iter().flat_map(|unit| &unit.slots) {
        if held > 0 && held + size(slot) > largest {
            files.push(Vec::new());
            held = 0;
        }
        held += size(slot);
        if let Some(file) = files.last_mut() {
            file.push(slot);
        }
    }
    let name = |number: usize| match files.len() {
        1 => SINGLE.to_string(),
        all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
    };
    for (number, slots) in files.iter().enumerate() {
        write_file(&folder.join(name(number)), slots, dtype, weights)?;
    }
    if files.len() > 1 {
        let place = |(number, slots): (usize, &Vec<&Slot>)| {
            slots.iter().map(|slot| (slot.name.clone(), name(number))).collect::<Vec<_>>()
        };
        let map: BTreeMap<String, String> = files.iter().enumerate().flat_map(place).collect();
        let total: u64 = files.iter().flatten().map(|slot| size(slot)).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        write(&folder.join(INDEX), format!("{index:#}\n").as_bytes())?;
    }
    Ok(())
}

/// One safetensors file, a tensor at a time: the header, then the data in its order.
/// (<https://github.com/huggingface/safetensors#format>; the crate would want all in memory.)
fn write_file(path: &PathBuf, slots: &[&Slot], dtype: Dtype, weights: &dyn WeightSource) -> Result<()> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_string(), json!({ "format": "pt" }));
    let mut start = 0;
    for slot in slots {
        let end = start + (slot.rows * slot.cols) as u64 * dtype.bytes();
        let info = json!({ "dtype": dtype.names().0, "shape": slot.shape(), "data_offsets": [start, end] });
        header.insert(slot.name.clone(), info);
        start = end;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    // The data begin at a multiple of 8.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let file = File::create(path)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    for slot in slots {
        let mut values = vec![0.0; slot.rows * slot.cols];
        weights.read(slot, 0, &mut values)?;
        for value in values {
            match dtype {
                Dtype::Bf16 => out.write_all(&bf16::from_f32(value).to_le_bytes())?,
                Dtype::F32 => out.write_all(&value.to_le_bytes())?,
            }
        }
    }
    Ok(out.into_inner().map_err(|error| error.into_error())?.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::checkpoint::Checkpoint;
    use crate::model::init::SeededWeights;
    use crate::model::rope::Yarn;

    fn config(tie_word_embeddings: bool) -> ModelConfig {
        ModelConfig {
            name: "saved".to_string(),
            vocab_size: 60,
            hidden_size: 16,
            intermediate_size: 24,
            num_hidden_layers: 3,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 6,
            rms_norm_eps: 1e-6,
            rope_theta: 1e4,
            max_position_embeddings: 64,
            tie_word_embeddings,
            qk_norm: true,
        }
    }

    fn model<'a>(config: &'a ModelConfig, rope: &'a Rope, dtype: Dtype, weights: &'a dyn WeightSource) -> Model<'a> {
        Model { config, rope, dtype, weights, companions: &[] }
    }

    fn values(config: &ModelConfig, source: &dyn WeightSource) -> Vec<Vec<f32>> {
        let read = |slot: &Slot| {
            let mut values = vec![f32::NAN; slot.rows * slot.cols];
            source.read(slot, 0, &mut values).unwrap();
            values
        };
        units(config).iter().flat_map(|u| &u.slots).map(read).collect()
    }

    #[test]
    fn what_is_saved_is_opened_again_to_the_bit() {
        let dir = tempfile::tempdir().unwrap();
        let source = SeededWeights { seed: 5 };
        for (number, (tied, largest)) in [(true, 1 << 30), (false, 4000)].into_iter().enumerate() {
            let (config, folder) = (config(tied), dir.path().join(format!("{number}/saved")));
            std::fs::create_dir_all(folder.parent().unwrap()).unwrap();
            let rope = Rope::Yarn(Yarn::new(1e4, 4.0, 32));
            let companions = [("tokenizer.json".to_string(), b"{}".to_vec())];
            let model = Model { companions: &companions, ..model(&config, &rope, Dtype::F32, &source) };
            save_in_files_of(largest, &folder, &model).unwrap();
            let opened = Checkpoint::open(&folder).unwrap();
            assert_eq!((&opened.config, &opened.rope), (&config, &rope));
            assert_eq!(values(&config, &opened), values(&config, &source));
            assert_eq!(opened.tokenizer_json().unwrap(), "{}");
            let files = std::fs::read_dir(&folder).unwrap().count();
            assert!(if tied { files == 3 } else { files > 5 }, "{files} files");
            // A part of a tensor, as a rank reads it.
            let units = units(&config);
            let (mut whole, mut part) = (vec![0.0; 16 * 24], vec![0.0; 100]);
            let gate = units[1].slot(layout::Part::Gate).unwrap();
            opened.read(gate, 0, &mut whole).unwrap();
            opened.read(gate, 77, &mut part).unwrap();
            assert_eq!(part, whole[77..177]);
            let again = save(&folder, &model).unwrap_err();
            assert!(again.is::<crate::error::BadInput>() && again.to_string().contains("exists already"));
        }
        // bf16 rounds once, and then no more.
        let (config, rope) = (config(true), Rope::Default { theta: 1e4 });
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        save(&a, &model(&config, &rope, Dtype::Bf16, &source)).unwrap();
        let once = Checkpoint::open(&a).unwrap();
        save(&b, &model(&config, &rope, Dtype::Bf16, &once)).unwrap();
        assert_eq!(values(&config, &Checkpoint::open(&b).unwrap()), values(&config, &once));
    }

    /// What a hub or a disk may do to a folder: each is refused with the file and the tensor.
    #[test]
    fn models_that_are_not_whole_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (config, rope) = (config(false), Rope::Default { theta: 1e4 });
        let folder = dir.path().join("saved");
        let source = SeededWeights { seed: 5 };
        save_in_files_of(4000, &folder, &model(&config, &rope, Dtype::Bf16, &source)).unwrap();
        let refused = |file: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>, part: &str| {
            let path = folder.join(file);
            let own = std::fs::read(&path).unwrap();
            std::fs::write(&path, change(own.clone())).unwrap();
            let error = Checkpoint::open(&folder).err().expect(part);
            assert!(error.is::<crate::error::BadInput>(), "{error:?}");
            assert!(error.to_string().contains(part), "{part}: {error}");
            std::fs::write(&path, own).unwrap();
        };
        let replace = |from: &'static str, to: &'static str| {
            move |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replacen(from, to, 1).into_bytes()
        };
        let mut first = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let first = first.find(|n| n.starts_with("model-00001")).unwrap();
        refused(&first, &|b| b[..b.len() - 1].to_vec(), "not a whole safetensors file");
        refused(&first, &|b| b[..20].to_vec(), "not a whole safetensors file");
        refused(&first, &|b| [&[0xff; 8], &b[8..]].concat(), "not a whole safetensors file");
        refused("config.json", &replace("\"hidden_size\": 16", "\"hidden_size\": 18"), "shape");
        refused(
            "config.json",
            &replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4"),
            "lack the tensor `model.layers.3",
        );
        refused("config.json", &replace("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2"), "would be ignored");
        refused("config.json", &replace("qwen3", "qwen3_moe"), "qwen3_moe");
        refused("config.json", &replace("{", ""), "config.json:");
        refused(INDEX, &replace("model-00002", "model-00003"), "is not in");
        refused(INDEX, &replace("\"model-00002", "\"../model-00002"), "not one of this folder");
        refused(INDEX, &replace("{", "["), "not an index");
        std::fs::remove_file(folder.join(&first)).unwrap();
        assert!(Checkpoint::open(&folder).err().unwrap().to_string().contains(&first));
    }
}
