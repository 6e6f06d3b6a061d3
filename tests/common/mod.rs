//! What the integration tests share: reference cases, and runs that leave gradients.
#![allow(dead_code)] // each test file uses its own part

use std::collections::HashMap;
use std::path::Path;

use ablation::device::IGNORED;
use ablation::model::config::ModelConfig;
use ablation::model::layout::Slot;
use ablation::model::rope::{Rope, Yarn};
use ablation::parallel::shard::WeightSource;
use ablation::train::toggles::Toggles;
use ablation::train::world::Row;
use ablation::verify::probe;
pub use ablation::verify::probe::{Left, Tensors, Uniform};

/// Weights by name.
pub struct Named(pub Tensors);

impl WeightSource for Named {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> anyhow::Result<()> {
        let values = self.0.get(&slot.name).ok_or_else(|| anyhow::anyhow!("no tensor {}", slot.name))?;
        out.copy_from_slice(&values[first..first + out.len()]);
        Ok(())
    }
}

/// Repeatable values that need no file.
pub const UNIFORM: Uniform = Uniform { seed: 7, scale: 0.25 };

/// One case from transformers, computed in float64.
pub struct Case {
    pub config: ModelConfig,
    pub rope: Rope,
    pub weights: Named,
    pub expected: Tensors,
    /// Rows of the optimizer's steps; the first is that of the loss and the gradients.
    pub rows: Vec<Row>,
    pub json: serde_json::Value,
    pub after: Option<Tensors>,
}

fn tensors(path: &Path) -> HashMap<String, candle_core::Tensor> {
    candle_core::safetensors::load(path, &candle_core::Device::Cpu).unwrap()
}

fn floats(path: &Path) -> Tensors {
    let convert = |t: candle_core::Tensor| t.to_dtype(candle_core::DType::F32)?.flatten_all()?.to_vec1::<f32>();
    tensors(path).into_iter().map(|(name, t)| (name, convert(t).unwrap())).collect()
}

pub fn case(name: &str) -> Case {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name);
    let json = |file: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(dir.join(file)).unwrap()).unwrap()
    };
    let c = json("config.json");
    let size = |key: &str| c[key].as_u64().unwrap() as usize;
    let rope = &c["rope_parameters"];
    let theta = rope["rope_theta"].as_f64().unwrap();
    let config = ModelConfig {
        name: name.to_string(),
        vocab_size: size("vocab_size"),
        hidden_size: size("hidden_size"),
        intermediate_size: size("intermediate_size"),
        num_hidden_layers: size("num_hidden_layers"),
        num_attention_heads: size("num_attention_heads"),
        num_key_value_heads: size("num_key_value_heads"),
        head_dim: size("head_dim"),
        rms_norm_eps: c["rms_norm_eps"].as_f64().unwrap(),
        rope_theta: theta,
        max_position_embeddings: size("max_position_embeddings") as u64,
        tie_word_embeddings: c["tie_word_embeddings"].as_bool().unwrap(),
        qk_norm: true,
    };
    let rope = match rope["rope_type"].as_str().unwrap() {
        "yarn" => Rope::Yarn(Yarn::new(
            theta,
            rope["factor"].as_f64().unwrap(),
            rope["original_max_position_embeddings"].as_u64().unwrap(),
        )),
        _ => Rope::Default { theta },
    };
    let ints = |name: &str| -> Vec<Vec<u32>> {
        let all = tensors(&dir.join("expected.safetensors"));
        let rows = all[name].to_dtype(candle_core::DType::I64).unwrap().to_vec2::<i64>().unwrap();
        rows.into_iter().map(|r| r.into_iter().map(|i| u32::try_from(i).unwrap_or(IGNORED)).collect()).collect()
    };
    let rows = ints("input_ids").into_iter().zip(ints("labels"));
    let after = dir.join("after_steps.safetensors");
    Case {
        config,
        rope,
        weights: Named(floats(&dir.join("model.safetensors"))),
        expected: floats(&dir.join("expected.safetensors")),
        rows: rows.map(|(ids, labels)| Row { ids, labels: Some(labels) }).collect(),
        json: json("expected.json"),
        after: after.exists().then(|| floats(&after)),
    }
}

/// The plainest toggles.
pub fn toggles(rope: Rope) -> Toggles {
    Toggles::plain(rope)
}

/// Runs `rows` and reads everything out; panics with the run's error.
pub fn train(config: &ModelConfig, toggles: &Toggles, source: &(dyn WeightSource + Sync), rows: &[Row]) -> Left {
    probe::train(config, toggles, source, rows).unwrap_or_else(|error| panic!("{error:?}"))
}
