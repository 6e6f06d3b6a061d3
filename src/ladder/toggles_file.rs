//! The toggles of an experiment file: their names, their defaults, and how they are written.

use std::fmt;

use anyhow::Result;
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::count::{Count, TOKENS};
use crate::bad_input;
use crate::model::rope::{Rope, Yarn};
use crate::train::toggles::{Auto, ContextParallel, Keep, Loss, Moments, Offload, Toggles};

/// Toggles that are set; the rest is from `[toggles]`, then the defaults.
#[derive(Deserialize, Serialize, Default, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct TogglesFile {
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
pub(super) fn resolve(defaults: &TogglesFile, own: TogglesFile, theta: f64) -> Result<(Toggles, Auto)> {
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

/// All toggles written out.
pub(super) fn spell(t: &Toggles, auto: Auto) -> TogglesFile {
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
