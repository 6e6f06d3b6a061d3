//! Models in GGUF files: sizes and weights of a llama or Qwen3, dequantized to f32.
//!
//! candle-core reads the file. What it takes on trust (an alignment of zero, doubled,
//! overlapping or endless tensors) is checked first, in `gguf_check`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{DType, Device};

use super::config::ModelConfig;
use super::gguf_check;
use super::layout::{Part, Slot, units};
use super::rope::{Rope, Yarn};
use crate::bad_input;
use crate::parallel::shard::WeightSource;

/// An open GGUF file.
pub struct Gguf {
    path: PathBuf,
    content: Content,
    reader: Mutex<BufReader<File>>,
    config: ModelConfig,
    rope: Rope,
    /// llama.cpp stores q and k of a llama with its rows permuted for interleaved rotation.
    permuted: bool,
}

/// Keys under the architecture that say nothing which the step would have to do otherwise.
const HARMLESS: [&str; 3] = ["vocab_size", "rope.dimension_count", "attention.value_length"];

/// A file's metadata, with errors that name the file and the key.
struct Metadata<'a> {
    path: &'a Path,
    architecture: String,
    values: &'a HashMap<String, Value>,
}

impl Metadata<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn number(&self, key: &str) -> Result<Option<u64>> {
        let key = self.key(key);
        let Some(value) = self.values.get(&key) else { return Ok(None) };
        match value.to_u64().ok().or_else(|| value.to_u32().ok().map(u64::from)) {
            Some(number) => Ok(Some(number)),
            None => bad_input!("{}: {key} is no count: {value:?}", self.path.display()),
        }
    }

    fn needed(&self, key: &str) -> Result<usize> {
        match self.number(key)? {
            Some(number) => Ok(usize::try_from(number).unwrap_or(usize::MAX)),
            None => bad_input!("{}: {} is missing", self.path.display(), self.key(key)),
        }
    }

    fn float(&self, key: &str) -> Result<Option<f64>> {
        let key = self.key(key);
        match self.values.get(&key) {
            None => Ok(None),
            // As written in decimal, so that 1e-5 in f32 is 1e-5 again.
            Some(Value::F32(value)) => Ok(value.to_string().parse().ok()),
            Some(Value::F64(value)) => Ok(Some(*value)),
            Some(value) => bad_input!("{}: {key} is no number: {value:?}", self.path.display()),
        }
    }
}

impl Gguf {
    /// Opens a file and checks that it is a model that the step computes.
    pub fn open(path: &Path) -> Result<Gguf> {
        gguf_check::check(path)?;
        let mut reader = BufReader::new(File::open(path).with_context(|| path.display().to_string())?);
        let content = match Content::read(&mut reader) {
            Ok(content) => content,
            Err(error) => bad_input!("{}: not a whole GGUF file: {error}; download it again", path.display()),
        };
        let architecture = match content.metadata.get("general.architecture") {
            Some(Value::String(name)) => name.clone(),
            _ => bad_input!("{}: general.architecture is missing", path.display()),
        };
        if !["llama", "qwen3"].contains(&&architecture[..]) {
            bad_input!(
                "{}: the architecture `{architecture}` is not computed here: llama and qwen3 are",
                path.display()
            );
        }
        let metadata = Metadata { path, architecture, values: &content.metadata };
        let config = config(&metadata, &content)?;
        let rope = rope(&metadata, &config)?;
        only_known_keys(&metadata)?;
        let permuted = metadata.architecture == "llama";
        config.validate().with_context(|| path.display().to_string())?;
        let file = Gguf { path: path.to_path_buf(), reader: Mutex::new(reader), config, rope, permuted, content };
        file.fits()?;
        Ok(file)
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The rope parameters of the file.
    pub fn rope(&self) -> &Rope {
        &self.rope
    }

    /// A value of the metadata.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.content.metadata.get(key)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every tensor of the architecture is there in its shape, and no other.
    fn fits(&self) -> Result<()> {
        let mut known = Vec::new();
        for slot in units(&self.config).iter().flat_map(|unit| &unit.slots) {
            let name = name(slot)?;
            let Some(info) = self.content.tensor_infos.get(&name) else {
                bad_input!("{}: the tensor `{name}` is missing", self.path.display());
            };
            let shape = slot.shape();
            if info.shape.dims() != shape {
                let dims = info.shape.dims();
                bad_input!("{}: `{name}` has the shape {dims:?}, where {shape:?} is needed", self.path.display());
            }
            known.push(name);
        }
        match self.content.tensor_infos.keys().find(|name| !known.contains(name)) {
            // Frequencies of a long-context llama would change the step.
            Some(other) => bad_input!("{}: the tensor `{other}` would be ignored", self.path.display()),
            None => Ok(()),
        }
    }
}

fn config(m: &Metadata, content: &Content) -> Result<ModelConfig> {
    let hidden_size = m.needed("embedding_length")?;
    let heads = m.needed("attention.head_count")?;
    let Some(embedding) = content.tensor_infos.get("token_embd.weight") else {
        bad_input!("{}: the tensor `token_embd.weight` is missing", m.path.display());
    };
    let Some(eps) = m.float("attention.layer_norm_rms_epsilon")? else {
        bad_input!("{}: {} is missing", m.path.display(), m.key("attention.layer_norm_rms_epsilon"));
    };
    Ok(ModelConfig {
        // The file's own word for itself (general.name) is often a training run's.
        name: m.path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        vocab_size: embedding.shape.dims().first().copied().unwrap_or(0),
        hidden_size,
        intermediate_size: m.needed("feed_forward_length")?,
        num_hidden_layers: m.needed("block_count")?,
        num_attention_heads: heads,
        num_key_value_heads: m.number("attention.head_count_kv")?.map_or(heads, |n| n as usize),
        head_dim: match m.number("attention.key_length")? {
            Some(length) => length as usize,
            None => hidden_size.checked_div(heads).unwrap_or(0),
        },
        rms_norm_eps: eps,
        // llama.cpp's default.
        rope_theta: m.float("rope.freq_base")?.unwrap_or(10_000.0),
        max_position_embeddings: m.needed("context_length")? as u64,
        tie_word_embeddings: !content.tensor_infos.contains_key("output.weight"),
        qk_norm: content.tensor_infos.contains_key("blk.0.attn_q_norm.weight"),
    })
}

fn rope(m: &Metadata, config: &ModelConfig) -> Result<Rope> {
    let theta = config.rope_theta;
    let kind = match m.values.get(&m.key("rope.scaling.type")) {
        None => "none",
        Some(Value::String(kind)) => &kind[..],
        Some(other) => bad_input!("{}: {} is {other:?}", m.path.display(), m.key("rope.scaling.type")),
    };
    if let Some(dims) = m.number("rope.dimension_count")?
        && dims != config.head_dim as u64
    {
        bad_input!(
            "{}: only {dims} of {} dimensions of a head are rotated: not computed here",
            m.path.display(),
            config.head_dim
        );
    }
    match kind {
        "none" => Ok(Rope::Default { theta }),
        "yarn" => {
            let Some(factor) = m.float("rope.scaling.factor")? else {
                bad_input!("{}: {} is missing", m.path.display(), m.key("rope.scaling.factor"));
            };
            let original = m.needed("rope.scaling.original_context_length")? as u64;
            Ok(Rope::Yarn(Yarn::new(theta, factor, original)))
        }
        other => bad_input!("{}: rope scaling `{other}` is not computed here: none and yarn are", m.path.display()),
    }
}

/// An unknown key of the architecture may ask for what isn't done: fail closed.
fn only_known_keys(m: &Metadata) -> Result<()> {
    let read = [
        "embedding_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "feed_forward_length",
        "block_count",
        "context_length",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
    ];
    let prefix = format!("{}.", m.architecture);
    for key in m.values.keys().filter_map(|key| key.strip_prefix(&prefix)) {
        if !read.contains(&key) && !HARMLESS.contains(&key) {
            bad_input!("{}: {prefix}{key} is not computed here, and would be ignored", m.path.display());
        }
    }
    Ok(())
}

/// llama.cpp's name of a tensor.
fn name(slot: &Slot) -> Result<String> {
    let part = match slot.part {
        Part::Embedding => return Ok("token_embd.weight".to_string()),
        Part::FinalNorm => return Ok("output_norm.weight".to_string()),
        Part::LmHead => return Ok("output.weight".to_string()),
        Part::InputNorm => "attn_norm",
        Part::Q => "attn_q",
        Part::K => "attn_k",
        Part::V => "attn_v",
        Part::QNorm => "attn_q_norm",
        Part::KNorm => "attn_k_norm",
        Part::O => "attn_output",
        Part::PostNorm => "ffn_norm",
        Part::Gate => "ffn_gate",
        Part::Up => "ffn_up",
        Part::Down => "ffn_down",
    };
    let layer = slot.name.strip_prefix("model.layers.").and_then(|rest| rest.split('.').next());
    let layer = layer.with_context(|| format!("{} is of no layer", slot.name))?;
    Ok(format!("blk.{layer}.{part}.weight"))
}

/// The row of the file that holds row `row` of q or k: the file has dimension i of a
/// head's first half at 2i, and that of its second half at 2i + 1.
fn permuted_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + 2 * (within % half) + within / half
}

impl WeightSource for Gguf {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()> {
        let name = name(slot)?;
        let values: Vec<f32> = {
            let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.seek(SeekFrom::Start(0))?;
            let tensor = self.content.tensor(&mut *reader, &name, &Device::Cpu);
            let tensor = tensor.with_context(|| format!("{}: `{name}`", self.path.display()))?;
            tensor.dequantize(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?
        };
        ensure!(first + out.len() <= values.len(), "`{name}` ends before element {}", first + out.len());
        if !(self.permuted && matches!(slot.part, Part::Q | Part::K)) {
            out.copy_from_slice(&values[first..first + out.len()]);
            return Ok(());
        }
        for (i, value) in out.iter_mut().enumerate() {
            let (row, col) = ((first + i) / slot.cols, (first + i) % slot.cols);
            *value = values[permuted_row(row, self.config.head_dim) * slot.cols + col];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// llama.cpp's conversion: reshape(heads, 2, half, …) with the middle axes swapped.
    #[test]
    fn rows_of_two_heads_go_home() {
        let home: Vec<usize> = (0..12).map(|row| permuted_row(row, 6)).collect();
        assert_eq!(home, [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
    }
}
