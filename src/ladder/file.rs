//! The TOML of an experiment file.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::experiment::{Device, Experiment, Rung, Text, TextSource};
use crate::bad_input;
use crate::model::config::ModelConfig;
use crate::model::rope::{Rope, Yarn};
use crate::train::toggles::{Auto, ContextParallel, Keep, Loss, Moments, Offload, Toggles};
use crate::units::{parse_bytes, parse_tokens};

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

/// Toggles that are set; the rest is from `[toggles]`, then the defaults.
#[derive(Deserialize, Serialize, Default, Clone)]
#[serde(deny_unknown_fields)]
struct TogglesFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    loss: Option<LossKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk_rows: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep: Option<KeepName>,
    /// With keep = "attention": in the last layers alone, this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_layers: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offload: Option<OffloadName>,
    /// With offload = "host": inputs of the first layers alone, this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    offload_inputs: Option<usize>,
    /// With offload = "host": attention outputs of the first that are kept alone, this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    offload_attention: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<Every>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tile: Option<Count<TOKENS>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cp: Option<ContextParallel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranks: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    moments: Option<Moments>,
    #[serde(skip_serializing_if = "Option::is_none")]
    yarn: Option<YarnFile>,
}

#[derive(Deserialize, Serialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum LossKind {
    Full,
    Chunked,
}

#[derive(Deserialize, Serialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum KeepName {
    Inputs,
    Attention,
    Auto,
}

#[derive(Deserialize, Serialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "lowercase")]
enum OffloadName {
    None,
    Host,
    Auto,
}

/// A number of layers, or "auto".
#[derive(Clone, Copy, PartialEq)]
enum Every {
    Layers(usize),
    Auto,
}

impl Serialize for Every {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Every::Layers(n) => s.serialize_u64(*n as u64),
            Every::Auto => s.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct EveryVisitor;
        impl Visitor<'_> for EveryVisitor {
            type Value = Every;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a number of layers or \"auto\"")
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Every, E> {
                usize::try_from(v).map(Every::Layers).map_err(|_| E::custom(format!("{v} is not positive")))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Every, E> {
                Ok(Every::Layers(usize::try_from(v).unwrap_or(usize::MAX)))
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Every, E> {
                match v {
                    "auto" => Ok(Every::Auto),
                    _ => Err(E::invalid_value(de::Unexpected::Str(v), &self)),
                }
            }
        }
        d.deserialize_any(EveryVisitor)
    }
}

/// YaRN's parameters; theta is the model's own.
#[derive(Deserialize, Serialize, Clone)]
#[serde(deny_unknown_fields)]
struct YarnFile {
    factor: f64,
    original: Count<TOKENS>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beta_fast: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    beta_slow: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    truncate: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attention_factor: Option<f64>,
}

const BYTES: bool = false;
const TOKENS: bool = true;

/// A count that may be written with a unit: bytes ("80GiB") or tokens ("160k").
#[derive(Clone, Copy)]
struct Count<const KIND: bool>(u64);

impl<const KIND: bool> Serialize for Count<KIND> {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de, const KIND: bool> Deserialize<'de> for Count<KIND> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct CountVisitor<const KIND: bool>;
        impl<const KIND: bool> Visitor<'_> for CountVisitor<KIND> {
            type Value = Count<KIND>;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str(if KIND == TOKENS { "tokens (1M, 160k or 32768)" } else { "bytes (80GiB or 1048576)" })
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Self::Value, E> {
                match u64::try_from(v) {
                    Ok(v) if v > 0 => Ok(Count(v)),
                    _ => Err(E::custom(format!("{v} is not positive"))),
                }
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Self::Value, E> {
                if v > 0 { Ok(Count(v)) } else { Err(E::custom("0 is not positive")) }
            }
            fn visit_str<E: de::Error>(self, v: &str) -> Result<Self::Value, E> {
                let count = if KIND == TOKENS { parse_tokens(v) } else { parse_bytes(v) };
                count.map(Count).map_err(E::custom)
            }
        }
        d.deserialize_any(CountVisitor)
    }
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
        (None, Some(files)) => TextSource::Files(files.iter().map(|f| whole(folder, f)).collect()),
        _ => bad_input!("{name}: [text] needs either `books` or `files`"),
    };
    let text = Text { source, tokenizer: file.text.tokenizer.map(|t| whole(folder, &t)) };
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

/// A path of the file's, so that what is written back can stand anywhere.
fn whole(folder: &Path, path: &Path) -> PathBuf {
    let path = folder.join(path);
    std::path::absolute(&path).unwrap_or(path)
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

/// What a rung keeps, or that the plan chooses. A number of layers belongs to the name that
/// stands beside it.
fn keep(defaults: &TogglesFile, own: &TogglesFile) -> Result<(Keep, bool)> {
    let name = own.keep.or(defaults.keep).unwrap_or(KeepName::Inputs);
    let layers = if own.keep.is_some() { own.keep_layers } else { own.keep_layers.or(defaults.keep_layers) };
    match (name, layers) {
        (KeepName::Attention, Some(layers)) => Ok((Keep::Layers(layers), false)),
        (_, Some(_)) => bad_input!("keep_layers would be ignored: set keep = \"attention\""),
        (KeepName::Attention, None) => Ok((Keep::Attention, false)),
        (name, None) => Ok((Keep::Inputs, name == KeepName::Auto)),
    }
}

/// Where a rung's activations live, or that the plan chooses; see [`keep`].
fn offload(defaults: &TogglesFile, own: &TogglesFile) -> Result<(Offload, bool)> {
    let name = own.offload.or(defaults.offload).unwrap_or(OffloadName::None);
    let whole = |t: &TogglesFile| (t.offload_inputs, t.offload_attention);
    let (inputs, attention) = match (own.offload, whole(own)) {
        (None, (None, None)) => whole(defaults),
        (_, own) => own,
    };
    match (name, inputs, attention) {
        (OffloadName::Host, None, None) => Ok((Offload::Host, false)),
        (OffloadName::Host, inputs, attention) => {
            let layers = Offload::Layers { inputs: inputs.unwrap_or(0), attention: attention.unwrap_or(0) };
            Ok((layers, false))
        }
        (name, None, None) => Ok((Offload::None, name == OffloadName::Auto)),
        _ => bad_input!("offload_inputs and offload_attention would be ignored: set offload = \"host\""),
    }
}

/// A rung's toggles: its own, then the file's, then the defaults; and which the plan chooses.
fn resolve(defaults: &TogglesFile, own: TogglesFile, theta: f64) -> Result<(Toggles, Auto)> {
    let ((keep, auto_keep), (offload, auto_offload)) = (keep(defaults, &own)?, offload(defaults, &own)?);
    let (every, auto_every) = match own.every.or(defaults.every).unwrap_or(Every::Layers(1)) {
        Every::Layers(every) => (every, false),
        Every::Auto => (1, true),
    };
    let auto = Auto { keep: auto_keep, offload: auto_offload, every: auto_every };
    let loss = own.loss.or(defaults.loss).unwrap_or(LossKind::Chunked);
    if own.chunk_rows.is_some() && loss == LossKind::Full {
        bad_input!(
            "chunk_rows is given with loss = \"full\": it would be ignored; take it away or set loss = \"chunked\""
        );
    }
    let loss = match loss {
        LossKind::Full => Loss::Full,
        // The guide's chunk.
        LossKind::Chunked => Loss::Chunked { rows: own.chunk_rows.or(defaults.chunk_rows).unwrap_or(256) },
    };
    let rope = match own.yarn.or_else(|| defaults.yarn.clone()) {
        None => Rope::Default { theta },
        Some(y) => {
            let usual = Yarn::new(theta, y.factor, y.original.0);
            Rope::Yarn(Yarn {
                beta_fast: y.beta_fast.unwrap_or(usual.beta_fast),
                beta_slow: y.beta_slow.unwrap_or(usual.beta_slow),
                truncate: y.truncate.unwrap_or(usual.truncate),
                attention_factor: y.attention_factor,
                ..usual
            })
        }
    };
    let toggles = Toggles {
        loss,
        rope,
        keep,
        offload,
        every,
        tile: own.tile.or(defaults.tile).map_or(4096, |t| t.0 as usize),
        cp: own.cp.or(defaults.cp).unwrap_or(ContextParallel::None),
        ranks: own.ranks.or(defaults.ranks).unwrap_or(1),
        moments: own.moments.or(defaults.moments).unwrap_or(Moments::Bf16),
    };
    Ok((toggles, auto))
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

/// All toggles written out.
fn spell(t: &Toggles, auto: Auto) -> TogglesFile {
    let (loss, chunk_rows) = match t.loss {
        Loss::Full => (LossKind::Full, None),
        Loss::Chunked { rows } => (LossKind::Chunked, Some(rows)),
    };
    let yarn = match &t.rope {
        Rope::Default { .. } => None,
        Rope::Yarn(y) => Some(YarnFile {
            factor: y.factor,
            original: Count(y.original),
            beta_fast: Some(y.beta_fast),
            beta_slow: Some(y.beta_slow),
            truncate: Some(y.truncate),
            attention_factor: y.attention_factor,
        }),
    };
    let (keep, keep_layers) = match t.keep {
        _ if auto.keep => (KeepName::Auto, None),
        Keep::Inputs => (KeepName::Inputs, None),
        Keep::Attention => (KeepName::Attention, None),
        Keep::Layers(layers) => (KeepName::Attention, Some(layers)),
    };
    let (offload, offload_inputs, offload_attention) = match t.offload {
        _ if auto.offload => (OffloadName::Auto, None, None),
        Offload::None => (OffloadName::None, None, None),
        Offload::Host => (OffloadName::Host, None, None),
        Offload::Layers { inputs, attention } => (OffloadName::Host, Some(inputs), Some(attention)),
    };
    TogglesFile {
        loss: Some(loss),
        chunk_rows,
        keep: Some(keep),
        keep_layers,
        offload: Some(offload),
        offload_inputs,
        offload_attention,
        every: Some(if auto.every { Every::Auto } else { Every::Layers(t.every) }),
        tile: Some(Count(t.tile as u64)),
        cp: Some(t.cp),
        ranks: Some(t.ranks),
        moments: Some(t.moments),
        yarn,
    }
}
