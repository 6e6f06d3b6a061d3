//! A model's config.json, as transformers writes it: read strictly, written in both spellings.

use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::config::ModelConfig;
use super::rope::{Rope, Yarn};
use crate::bad_input;

/// No config.json is as long, bytes.
const LONGEST: u64 = 4 << 20;

/// Keys that don't change the training step.
const HARMLESS: [&str; 22] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_window_layers",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
];

/// Keys that are read.
const READ: [&str; 14] = [
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "vocab_size",
];

/// Keys of which one value alone is computed here.
fn only(key: &str, value: &Value) -> Option<&'static str> {
    match key {
        "hidden_act" if value != "silu" => Some("silu is the only activation"),
        "attention_bias" | "mlp_bias" if value != false => Some("projections have no bias here"),
        "use_sliding_window" if value != false => {
            Some("attention over a window is not computed: it would train as full")
        }
        "sliding_window" if !value.is_null() => Some("attention over a window is not computed: it would train as full"),
        "rope_interleaved" if value != false => Some("halves of a head are rotated, not neighbours"),
        "pretraining_tp" if value != 1 => Some("only 1 is computed here"),
        "hidden_act" | "pretraining_tp" | "attention_bias" | "mlp_bias" | "use_sliding_window" | "sliding_window"
        | "rope_interleaved" => None,
        _ => Some("this program does not know it, and would ignore it"),
    }
}

/// A config.json that is being read.
struct Config<'a> {
    shown: String,
    values: &'a Map<String, Value>,
}

impl Config<'_> {
    fn count(&self, key: &str) -> Result<Option<usize>> {
        match self.values.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_u64().and_then(|v| usize::try_from(v).ok()) {
                Some(value) => Ok(Some(value)),
                None => bad_input!("{}: {key} = {value} is no count", self.shown),
            },
        }
    }

    fn needed(&self, key: &str) -> Result<usize> {
        match self.count(key)? {
            Some(value) => Ok(value),
            None => bad_input!("{}: {key} is missing", self.shown),
        }
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.values.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(value) => Ok(Some(value)),
                None => bad_input!("{}: {key} = {value} is no number", self.shown),
            },
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.values.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => match value.as_bool() {
                Some(value) => Ok(value),
                None => bad_input!("{}: {key} = {value} is neither true nor false", self.shown),
            },
        }
    }
}

/// Reads a config.json.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) for a model that the step doesn't compute as it is
/// meant: another architecture, windows, other ropes, a key that is not known here.
pub fn read(path: &Path) -> Result<(ModelConfig, Rope)> {
    let text = match path.metadata().and_then(|m| Ok((m.len(), std::fs::read_to_string(path)?))) {
        Ok((length, _)) if length > LONGEST => bad_input!("{}: too long for a config.json", path.display()),
        Ok((_, text)) => text,
        Err(error) => bad_input!("{}: {error}", path.display()),
    };
    parse(&text, &path.display().to_string())
}

/// Reads a config.json's text; `shown` stands in messages.
pub fn parse(text: &str, shown: &str) -> Result<(ModelConfig, Rope)> {
    let values: Map<String, Value> = match serde_json::from_str(text) {
        Ok(values) => values,
        Err(error) => bad_input!("{shown}:{}:{}: {error}: not a config.json", error.line(), error.column()),
    };
    let c = Config { shown: shown.to_string(), values: &values };
    let qk_norm = match values.get("model_type").and_then(Value::as_str) {
        Some("qwen3") => true,
        Some("llama") => false,
        Some(other) => bad_input!(
            "{shown}: model_type = \"{other}\" is not computed here: qwen3 (dense) and llama are; a model of another \
             kind would train wrongly"
        ),
        None => bad_input!("{shown}: model_type is missing"),
    };
    let layers = c.needed("num_hidden_layers")?;
    if let Some(types) = values.get("layer_types").filter(|v| !v.is_null()) {
        let full = types.as_array().is_some_and(|t| t.len() == layers && t.iter().all(|t| t == "full_attention"));
        if !full {
            bad_input!("{shown}: layer_types: every layer must be full_attention; others are not computed here");
        }
    }
    for (key, value) in &values {
        if READ.contains(&&key[..]) || HARMLESS.contains(&&key[..]) {
            continue;
        }
        // Qwen3 publishes a window that use_sliding_window = false turns off.
        if key == "sliding_window" && values.get("use_sliding_window") == Some(&Value::Bool(false)) {
            continue;
        }
        if let Some(reason) = only(key, value) {
            bad_input!("{shown}: {key} = {value}: {reason}");
        }
    }
    let (hidden, heads) = (c.needed("hidden_size")?, c.needed("num_attention_heads")?);
    let max = c.needed("max_position_embeddings")? as u64;
    let rope = rope(&c, max)?;
    let Some(rms_norm_eps) = c.number("rms_norm_eps")? else { bad_input!("{shown}: rms_norm_eps is missing") };
    let config = ModelConfig {
        name: "model".to_string(),
        vocab_size: c.needed("vocab_size")?,
        hidden_size: hidden,
        intermediate_size: c.needed("intermediate_size")?,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: c.count("num_key_value_heads")?.unwrap_or(heads),
        head_dim: match c.count("head_dim")? {
            Some(head_dim) => head_dim,
            // transformers' default: 128 in Qwen3, the quotient in a llama.
            None if qk_norm => 128,
            None => hidden.checked_div(heads).unwrap_or(0),
        },
        rms_norm_eps,
        rope_theta: rope.theta(),
        max_position_embeddings: max,
        tie_word_embeddings: c.flag("tie_word_embeddings", false)?,
        qk_norm,
    };
    match config.validate().and_then(|()| rope.validate()) {
        Ok(()) => Ok((config, rope)),
        Err(error) => bad_input!("{shown}: {error}"),
    }
}

/// The rope of either spelling: `rope_parameters`, or `rope_theta` with `rope_scaling`.
fn rope(c: &Config, max: u64) -> Result<Rope> {
    let shown = &c.shown;
    let own = c.number("rope_theta")?;
    let mut found: Option<Rope> = None;
    for key in ["rope_parameters", "rope_scaling"] {
        let table = match c.values.get(key) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(table)) => table,
            Some(other) => bad_input!("{shown}: {key} = {other} is no table"),
        };
        let rope = table_of(&Config { shown: format!("{shown}: {key}"), values: table }, own, max)?;
        if found.as_ref().is_some_and(|found| *found != rope) {
            bad_input!("{shown}: rope_parameters and rope_scaling say different things: keep one of them");
        }
        found = Some(rope);
    }
    match (found, own) {
        (Some(rope), _) => Ok(rope),
        (None, Some(theta)) => Ok(Rope::Default { theta }),
        (None, None) => bad_input!("{shown}: rope_theta is missing"),
    }
}

fn table_of(t: &Config, own: Option<f64>, max: u64) -> Result<Rope> {
    let shown = &t.shown;
    let known = [
        "rope_type",
        "type",
        "rope_theta",
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "truncate",
    ];
    if let Some(key) = t.values.keys().find(|key| !known.contains(&&key[..])) {
        bad_input!("{shown}: {key} is not computed here, and would be ignored");
    }
    let theta = match (t.number("rope_theta")?, own) {
        (Some(theta), Some(own)) if theta != own => {
            bad_input!("{shown}: rope_theta = {theta}, where the model's own is {own}")
        }
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => bad_input!("{shown}: rope_theta is missing"),
    };
    let kind = t.values.get("rope_type").or_else(|| t.values.get("type"));
    match kind.and_then(Value::as_str) {
        Some("default") => Ok(Rope::Default { theta }),
        Some("yarn") => {
            let Some(factor) = t.number("factor")? else { bad_input!("{shown}: factor is missing") };
            let original = t.count("original_max_position_embeddings")?.map_or(max, |n| n as u64);
            let usual = Yarn::new(theta, factor, original);
            Ok(Rope::Yarn(Yarn {
                beta_fast: t.number("beta_fast")?.unwrap_or(usual.beta_fast),
                beta_slow: t.number("beta_slow")?.unwrap_or(usual.beta_slow),
                truncate: t.flag("truncate", usual.truncate)?,
                attention_factor: t.number("attention_factor")?,
                ..usual
            }))
        }
        Some(other) => bad_input!("{shown}: rope_type = \"{other}\" is not computed here: default and yarn are"),
        None => bad_input!("{shown}: rope_type is missing"),
    }
}

/// The config.json of a model with the rope in force, in both of transformers' spellings.
pub fn write(config: &ModelConfig, rope: &Rope, dtype: &str) -> String {
    let (model_type, class) =
        if config.qk_norm { ("qwen3", "Qwen3ForCausalLM") } else { ("llama", "LlamaForCausalLM") };
    let mut parameters = json!({ "rope_theta": rope.theta(), "rope_type": "default" });
    let mut scaling = Value::Null;
    if let Rope::Yarn(yarn) = rope {
        scaling = json!({
            "rope_type": "yarn",
            "factor": yarn.factor,
            "original_max_position_embeddings": yarn.original,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
            "truncate": yarn.truncate,
        });
        if let Some(factor) = yarn.attention_factor {
            scaling["attention_factor"] = json!(factor);
        }
        parameters = scaling.clone();
        parameters["rope_theta"] = json!(yarn.theta);
    }
    let mut all = json!({
        "architectures": [class],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "attention_bias": false,
        "attention_dropout": 0.0,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": rope.theta(),
        "rope_scaling": scaling,
        "rope_parameters": parameters,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": dtype,
        "use_cache": true,
    });
    if config.qk_norm {
        // candle-transformers asks for these.
        all["sliding_window"] = Value::Null;
        all["use_sliding_window"] = json!(false);
        all["max_window_layers"] = json!(config.num_hidden_layers);
    } else {
        all["mlp_bias"] = json!(false);
    }
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const QWEN3: &str = r#"{
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
        "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
        "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
        "vocab_size": 151936 }"#;

    #[test]
    fn the_published_config_is_read() {
        let (config, rope) = parse(QWEN3, "config.json").unwrap();
        assert_eq!(config.parameters(), 596_049_920);
        assert_eq!(rope, Rope::Default { theta: 1e6 });
    }

    #[test]
    fn what_is_written_is_read_back() {
        let (own, rope) = parse(QWEN3, "config.json").unwrap();
        let yarn = Yarn { attention_factor: Some(1.25), truncate: false, ..Yarn::new(1e6, 32.0, 32_768) };
        for config in [own.clone(), ModelConfig { qk_norm: false, tie_word_embeddings: false, ..own }] {
            for rope in [rope.clone(), Rope::Yarn(yarn.clone()), Rope::Yarn(Yarn::new(1e6, 4.0, 40_960))] {
                let text = write(&config, &rope, "bfloat16");
                assert_eq!(parse(&text, "config.json").unwrap(), (config.clone(), rope));
            }
        }
    }

    /// failures.md 8, 9, 24: other kinds of attention, other ropes, keys that would be ignored.
    #[test]
    fn other_models_are_refused_with_the_key() {
        for (from, to, part) in [
            (r#""model_type": "qwen3""#, r#""model_type": "gemma3_text""#, "gemma3_text"),
            (r#""use_sliding_window": false"#, r#""use_sliding_window": true"#, "use_sliding_window"),
            (r#", "use_sliding_window": false"#, r#", "sliding_window": 4096"#, "sliding_window"),
            (r#""rope_scaling": null"#, r#""layer_types": ["sliding_attention"]"#, "layer_types"),
            (r#""rope_scaling": null"#, r#""num_experts": 128"#, "num_experts"),
            (r#""rope_scaling": null"#, r#""quantization_config": {}"#, "quantization_config"),
            (r#""rope_scaling": null"#, r#""rope_scaling": {"rope_type": "llama3", "factor": 8.0}"#, "llama3"),
            (r#""rope_scaling": null"#, r#""rope_scaling": {"rope_type": "yarn"}"#, "factor is missing"),
            (
                r#""rope_scaling": null"#,
                r#""rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1}"#,
                "mscale",
            ),
            (
                r#""rope_scaling": null"#,
                r#""rope_parameters": {"rope_type": "default", "rope_theta": 5}"#,
                "own is 1000000",
            ),
            (r#""attention_bias": false"#, r#""attention_bias": true"#, "attention_bias"),
            (r#""hidden_act": "silu""#, r#""hidden_act": "gelu""#, "hidden_act"),
            (r#""head_dim": 128"#, r#""head_dim": "x""#, "head_dim"),
            (r#""vocab_size": 151936"#, r#""vocab_size": -1"#, "vocab_size"),
            (r#""vocab_size": 151936"#, r#""vocab_size": 99999999999999999999"#, "vocab_size"),
        ] {
            let changed = QWEN3.replace(from, to);
            assert_ne!(changed, QWEN3, "{from}");
            let error = parse(&changed, "config.json").expect_err(to);
            assert!(error.is::<crate::error::BadInput>() && error.to_string().contains(part), "{to}: {error}");
        }
    }
}
