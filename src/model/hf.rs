//! A model's config.json, as Hugging Face transformers writes it, read strictly: what this
//! program does not compute is refused, and so is every key that it does not know.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Result;
use serde_json::{Map, Value};

use super::config::ModelConfig;
use super::rope::{Rope, Yarn};
use crate::bad_input;

/// A config.json's sizes and rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    pub config: ModelConfig,
    pub rope: Rope,
}

/// No config.json is as long, bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// Keys that change nothing that is computed here.
const WITHOUT_EFFECT: [&str; 17] = [
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "max_window_layers",
    "_name_or_path",
    "name_or_path",
    "pretraining_tp",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "is_encoder_decoder",
];

/// The keys of an object, taken one after the other.
struct Keys<'a> {
    name: &'a str,
    keys: Map<String, Value>,
}

impl Keys<'_> {
    fn wrong<T>(&self, key: &str, value: &Value, what: &str) -> Result<T> {
        bad_input!("{}: `{key}` is {value}: {what}", self.name)
    }

    /// A value that is there and not null.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.keys.remove(key).filter(|v| !v.is_null())
    }

    fn needed(&mut self, key: &str) -> Result<Value> {
        match self.take(key) {
            Some(value) => Ok(value),
            None => bad_input!("{}: `{key}` is missing: give the config.json of a Qwen3 model", self.name),
        }
    }

    fn count(&mut self, key: &str) -> Result<u64> {
        let value = self.needed(key)?;
        match value.as_u64() {
            Some(count) => Ok(count),
            None => self.wrong(key, &value, "it must be a whole number, 0 or above"),
        }
    }

    fn size(&mut self, key: &str) -> Result<usize> {
        Ok(usize::try_from(self.count(key)?).unwrap_or(usize::MAX))
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => self.wrong(key, &value, "it must be a number"),
            },
        }
    }

    fn flag(&mut self, key: &str) -> Result<Option<bool>> {
        match self.take(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(value) => self.wrong(key, &value, "it must be true or false"),
        }
    }

    /// Refuses what a key may not be; absent and null are right.
    fn only(&mut self, key: &str, right: impl Fn(&Value) -> bool, why: &str) -> Result<()> {
        match self.take(key) {
            Some(value) if !right(&value) => self.wrong(key, &value, why),
            _ => Ok(()),
        }
    }

    /// Refuses what is left.
    fn end(&self, what: &str) -> Result<()> {
        match self.keys.iter().find(|(_, value)| !value.is_null()) {
            Some((key, _)) => bad_input!("{}: `{key}` is no key of {what} that this program knows", self.name),
            None => Ok(()),
        }
    }
}

/// Reads a config.json. Errors: it can't be read, is no JSON, lacks a key, or asks for what
/// is not computed here.
pub fn read(path: &Path) -> Result<Published> {
    let name = path.display().to_string();
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST_FILE + 1).read_to_string(&mut text));
    match read {
        Ok(bytes) if bytes as u64 > LONGEST_FILE => bad_input!("{name}: larger than 1 MiB: this is no config.json"),
        Ok(_) => parse(&text, &name),
        Err(error) => bad_input!("{name}: {error}; give a model's config.json"),
    }
}

/// Reads the text of a config.json; `name` stands in messages.
pub fn parse(text: &str, name: &str) -> Result<Published> {
    let keys = match serde_json::from_str(text) {
        Ok(Value::Object(keys)) => keys,
        Ok(_) => bad_input!("{name}: no JSON object: give a model's config.json"),
        Err(error) => bad_input!("{name}: {error}: give a model's config.json"),
    };
    let mut keys = Keys { name, keys };
    keys.only(
        "model_type",
        |v| v == "qwen3",
        "only dense Qwen3 models (`qwen3`) are computed; mixtures of experts and other kinds are not",
    )?;
    keys.only("hidden_act", |v| v == "silu", "only `silu` is computed")?;
    keys.only("attention_bias", |v| v == false, "projections with a bias are not computed")?;
    keys.only("mlp_bias", |v| v == false, "projections with a bias are not computed")?;
    keys.only("attention_dropout", |v| v.as_f64() == Some(0.0), "dropout is not computed")?;
    let slides = keys.flag("use_sliding_window")?;
    let window = keys.take("sliding_window");
    match (slides, window) {
        (Some(true), _) => bad_input!("{name}: `use_sliding_window` is true: only full attention is computed"),
        // A window that isn't said to be unused is used.
        (None, Some(window)) => bad_input!("{name}: `sliding_window` is {window}: only full attention is computed"),
        _ => {}
    }
    let full = |v: &Value| v.as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind == "full_attention"));
    keys.only("layer_types", full, "every layer must be `full_attention`: no other is computed")?;

    let (theta, rope) = rope(&mut keys)?;
    let config = ModelConfig {
        name: name.to_string(),
        vocab_size: keys.size("vocab_size")?,
        hidden_size: keys.size("hidden_size")?,
        intermediate_size: keys.size("intermediate_size")?,
        num_hidden_layers: keys.size("num_hidden_layers")?,
        num_attention_heads: keys.size("num_attention_heads")?,
        num_key_value_heads: keys.size("num_key_value_heads")?,
        head_dim: keys.size("head_dim")?,
        rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta: theta,
        max_position_embeddings: keys.count("max_position_embeddings")?,
        // Qwen3Config's own default.
        tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
        qk_norm: true,
    };
    for key in WITHOUT_EFFECT {
        keys.take(key);
    }
    keys.end("a Qwen3 model")?;
    if let Err(error) = config.validate().and_then(|()| rope.validate()) {
        bad_input!("{name}: {error}");
    }
    Ok(Published { config, rope })
}

/// The base of the rotary embedding, and how it is scaled: `rope_parameters` (transformers 5)
/// or `rope_theta` with `rope_scaling` (4).
fn rope(keys: &mut Keys) -> Result<(f64, Rope)> {
    let outer = keys.number("rope_theta")?;
    let (new, old) = (keys.take("rope_parameters"), keys.take("rope_scaling"));
    let (key, value) = match (new, old) {
        (Some(_), Some(_)) => {
            bad_input!("{}: both `rope_parameters` and `rope_scaling`: take one of them away", keys.name)
        }
        (Some(value), None) => ("rope_parameters", value),
        (None, Some(value)) => ("rope_scaling", value),
        (None, None) => ("rope_parameters", Value::Object(Map::new())),
    };
    let name = format!("{}, `{key}`", keys.name);
    let Value::Object(inner) = value else { return keys.wrong(key, &value, "it must be an object") };
    let mut inner = Keys { name: &name, keys: inner };
    let theta = match (outer, inner.number("rope_theta")?) {
        (Some(a), Some(b)) if a != b => bad_input!("{}: `rope_theta` is {a} and, in `{key}`, {b}", keys.name),
        (Some(theta), _) | (None, Some(theta)) => theta,
        (None, None) => bad_input!("{}: `rope_theta` is missing: give the config.json of a Qwen3 model", keys.name),
    };
    let kind = inner.take("rope_type").or_else(|| inner.take("type"));
    inner.take("type");
    let rope = match kind.as_ref().map(|k| k.as_str().unwrap_or_default()) {
        None | Some("default") => Rope::Default { theta },
        Some("yarn") => {
            let Some(factor) = inner.number("factor")? else { bad_input!("{name}: YaRN needs `factor`") };
            let usual = Yarn::new(theta, factor, inner.count("original_max_position_embeddings")?);
            Rope::Yarn(Yarn {
                beta_fast: inner.number("beta_fast")?.unwrap_or(usual.beta_fast),
                beta_slow: inner.number("beta_slow")?.unwrap_or(usual.beta_slow),
                truncate: inner.flag("truncate")?.unwrap_or(usual.truncate),
                attention_factor: inner.number("attention_factor")?,
                ..usual
            })
        }
        Some(_) => {
            bad_input!("{name}: a scaling of kind {} is not computed: `default` or `yarn`", kind.unwrap_or_default())
        }
    };
    inner.end("rope")?;
    Ok((theta, rope))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YARN: &str = include_str!("../../tests/reference/dense-yarn4/config.json");

    #[test]
    fn what_transformers_wrote_is_read() {
        let published = parse(YARN, "config.json").unwrap();
        assert_eq!(published.rope, Rope::Yarn(Yarn::new(1e6, 4.0, 32)));
        assert_eq!((published.config.head_dim, published.config.tie_word_embeddings), (32, false));
        let old = YARN.replace("\"rope_parameters\"", "\"rope_theta\": 1e6, \"rope_scaling\"");
        assert_eq!(parse(&old, "config.json").unwrap(), published);
    }

    /// failures.md 8, 9, 23: whatever would be computed otherwise than the file says is refused.
    #[test]
    fn what_is_not_computed_is_refused() {
        let refused = |from: &str, to: &str, says: &str| {
            assert!(YARN.contains(from), "{from}");
            let error = parse(&YARN.replacen(from, to, 1), "config.json").expect_err(to);
            assert!(error.is::<crate::error::BadInput>());
            assert!(error.to_string().starts_with("config.json") && error.to_string().contains(says), "{error}");
        };
        refused("\"qwen3\"", "\"qwen3_moe\"", "mixtures of experts");
        refused("\"full_attention\",", "\"sliding_attention\",", "layer_types");
        refused("\"use_sliding_window\": false", "\"use_sliding_window\": true", "use_sliding_window");
        let window = YARN.replace("  \"use_sliding_window\": false,\n", "").replace("window\": null", "window\": 4096");
        assert!(parse(&window, "config.json").unwrap_err().to_string().contains("`sliding_window` is 4096"));
        refused("\"use_cache\": true", "\"num_experts\": 128", "num_experts");
        refused("\"factor\": 4.0", "\"faktor\": 4.0", "factor");
        refused("\"factor\": 4.0", "\"factor\": 4.0, \"mscale\": 1", "mscale");
        refused("\"yarn\"", "\"dynamic\"", "dynamic");
        refused("\"attention_bias\": false", "\"attention_bias\": true", "bias");
        refused("\"head_dim\": 32,", "", "head_dim");
        refused("\"hidden_size\": 48", "\"hidden_size\": -48", "hidden_size");
        refused("\"vocab_size\": 384", "\"vocab_size\": 0", "vocab_size");
        refused("{", "[", "config.json");
    }
}
