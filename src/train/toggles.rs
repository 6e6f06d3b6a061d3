//! The toggles of a rung: what the ladder adds one at a time.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::bad_input;
use crate::device::DType;
use crate::model::block::SHORTEST_TILE;
use crate::model::config::ModelConfig;
use crate::model::rope::Rope;
use crate::parallel::split::Scheme;

/// How the loss is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All logits at once.
    Full,
    /// Logits of `rows` tokens at a time.
    Chunked { rows: usize },
}

/// What the forward pass keeps of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Its input; all else is computed again.
    Inputs,
    /// Its input, the attention output and the log-sum-exp: attention is never computed again.
    Attention,
    /// As [`Keep::Attention`] in the last layers, this many; as [`Keep::Inputs`] in the others.
    Layers(usize),
}

/// Where kept activations live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// On the device.
    None,
    /// In host memory.
    Host,
    /// In host memory those of the first layers, which are needed last: inputs of this many
    /// layers, attention outputs of this many of the layers that keep theirs.
    Layers { inputs: usize, attention: usize },
}

/// How the sequence is split over ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContextParallel {
    None,
    Ring,
    Ulysses,
}

/// Type of AdamW's moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moments {
    Bf16,
    F32,
}

/// Which toggles the plan chooses, for a length, a budget and a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Auto {
    pub keep: bool,
    pub offload: bool,
    pub every: bool,
}

impl Auto {
    /// Whether it chooses anything.
    pub fn any(self) -> bool {
        self.keep || self.offload || self.every
    }
}

/// One setting of all toggles.
#[derive(Debug, Clone, PartialEq)]
pub struct Toggles {
    pub loss: Loss,
    pub rope: Rope,
    pub keep: Keep,
    pub offload: Offload,
    /// A checkpoint every this many layers.
    pub every: usize,
    /// Tokens that row-wise operations take at once.
    pub tile: usize,
    pub cp: ContextParallel,
    pub ranks: usize,
    pub moments: Moments,
}

impl Keep {
    /// The first of `layers` layers that keeps its attention output; `layers` if none does.
    pub fn attention_from(self, layers: usize) -> usize {
        match self {
            Keep::Inputs => layers,
            Keep::Attention => 0,
            Keep::Layers(kept) => layers.saturating_sub(kept),
        }
    }
}

impl Offload {
    /// How many layers' inputs go to host memory, and how many layers' attention outputs.
    pub fn layers(self) -> (usize, usize) {
        match self {
            Offload::None => (0, 0),
            Offload::Host => (usize::MAX, usize::MAX),
            Offload::Layers { inputs, attention } => (inputs, attention),
        }
    }
}

/// The most ranks of a world.
const MOST_RANKS: usize = 512;

impl Loss {
    /// "full", or "chunked, 256 rows".
    pub fn describe(self) -> String {
        match self {
            Loss::Full => "full".to_string(),
            Loss::Chunked { rows } => format!("chunked, {rows} rows"),
        }
    }
}

impl Toggles {
    /// The plainest: one rank, all logits at once, no tiles, layer inputs kept on the device.
    pub fn plain(rope: Rope) -> Toggles {
        Toggles {
            loss: Loss::Full,
            rope,
            keep: Keep::Inputs,
            offload: Offload::None,
            every: 1,
            tile: 1 << 20,
            cp: ContextParallel::None,
            ranks: 1,
            moments: Moments::F32,
        }
    }

    /// What is kept and where it lives, for a model of `layers` layers.
    pub fn describe_keep(&self, layers: usize) -> String {
        let kept = layers - self.keep.attention_from(layers);
        let (inputs, attention) = self.offload.layers();
        let checkpoints = layers.div_ceil(self.every.max(1));
        let in_host = inputs.min(layers).div_ceil(self.every.max(1));
        let place = |host: usize, all: usize| match host {
            0 => " on the device".to_string(),
            host if host >= all => " in host memory".to_string(),
            host => format!(", {host} of them in host memory"),
        };
        let inputs = format!("inputs of {checkpoints} layers{}", place(in_host, checkpoints));
        match kept {
            0 => inputs,
            kept => {
                let layers = if kept == 1 { "layer" } else { "layers" };
                format!("{inputs}; attention outputs of {kept} {layers}{}", place(attention.min(kept), kept))
            }
        }
    }

    /// Says what is wrong with the toggles for a model, by key; returns the number of equal
    /// pieces that a length must fall into.
    pub fn validate(&self, model: &ModelConfig) -> Result<u64> {
        self.rope.validate()?;
        if self.ranks == 0 || self.ranks > MOST_RANKS {
            bad_input!("ranks = {}: from 1 to {MOST_RANKS}", self.ranks);
        }
        if let Loss::Chunked { rows } = self.loss
            && rows < SHORTEST_TILE
        {
            bad_input!("chunk_rows = {rows}: at least {SHORTEST_TILE}");
        }
        if self.tile < SHORTEST_TILE {
            bad_input!("tile = {}: at least {SHORTEST_TILE} tokens", self.tile);
        }
        let layers = model.num_hidden_layers;
        if self.every == 0 || self.every > layers {
            bad_input!("every = {}: from 1 to the model's {layers} layers", self.every);
        }
        let kept = layers - self.keep.attention_from(layers);
        match (self.keep, self.offload) {
            (Keep::Layers(n), _) if n == 0 || n > layers => {
                bad_input!("keep_layers = {n}: from 1 to the model's {layers} layers")
            }
            (_, Offload::Layers { inputs, .. }) if inputs > layers => {
                bad_input!("offload_inputs = {inputs}: the model has {layers} layers")
            }
            (_, Offload::Layers { attention, .. }) if attention > kept => {
                bad_input!("offload_attention = {attention}: {kept} layers keep their attention output")
            }
            _ => {}
        }
        let (heads, kv_heads, ranks) = (model.num_attention_heads, model.num_key_value_heads, self.ranks);
        let pieces = match self.cp {
            ContextParallel::None if ranks > 1 => {
                bad_input!(
                    "ranks = {ranks} with cp = \"none\": nothing would be split; set cp = \"ring\" or \"ulysses\""
                )
            }
            ContextParallel::None => 1,
            _ if ranks == 1 => bad_input!("cp is set but ranks = 1: set ranks, or cp = \"none\""),
            ContextParallel::Ring => 2 * ranks,
            ContextParallel::Ulysses if !heads.is_multiple_of(ranks) => {
                bad_input!("ulysses shares {heads} attention heads out over ranks: {ranks} does not divide them")
            }
            ContextParallel::Ulysses if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads) => {
                bad_input!("ulysses: {kv_heads} KV heads and {ranks} ranks: one must divide the other")
            }
            ContextParallel::Ulysses => ranks,
        };
        Ok(pieces as u64)
    }
}

impl ContextParallel {
    /// The split of the sequence.
    pub fn scheme(self) -> Scheme {
        match self {
            ContextParallel::None => Scheme::Whole,
            ContextParallel::Ring => Scheme::Ring,
            ContextParallel::Ulysses => Scheme::Ulysses,
        }
    }
}

impl ContextParallel {
    /// Its name in files and columns.
    pub fn key(self) -> &'static str {
        match self {
            ContextParallel::None => "none",
            ContextParallel::Ring => "ring",
            ContextParallel::Ulysses => "ulysses",
        }
    }
}

impl Moments {
    /// Its name in files and columns.
    pub fn key(self) -> &'static str {
        match self {
            Moments::Bf16 => "bf16",
            Moments::F32 => "f32",
        }
    }

    /// The buffers' type.
    pub fn dtype(self) -> DType {
        match self {
            Moments::Bf16 => DType::Bf16,
            Moments::F32 => DType::F32,
        }
    }
}
