//! The toggles of a training step as options, for commands that take one setting.

use anyhow::Result;

use crate::bad_input;
use crate::model::config::ModelConfig;
use crate::model::rope::{Rope, Yarn};
use crate::train::toggles::{ContextParallel, Keep, Loss, Moments, Offload, Toggles};
use crate::units::{format_tokens, parse_tokens};

/// How one training step is computed.
#[derive(Debug, clap::Args)]
pub struct ToggleOptions {
    /// How the loss is computed: full (all logits at once) or chunked
    #[arg(long, value_name = "KIND", value_parser = ["full", "chunked"], default_value = "chunked")]
    loss: String,
    /// Rows of logits at a time of the chunked loss
    #[arg(long, value_name = "N", default_value_t = 256)]
    chunk_rows: usize,
    /// What the forward pass keeps of a layer: inputs, or attention (its output too)
    #[arg(long, value_name = "WHAT", value_parser = ["inputs", "attention"], default_value = "inputs")]
    keep: String,
    /// Where kept activations live: none (on the device) or host
    #[arg(long, value_name = "WHERE", value_parser = ["none", "host"], default_value = "none")]
    offload: String,
    /// A checkpoint every N layers
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,
    /// Tokens that row-wise operations take at once
    #[arg(long, value_name = "TOKENS", default_value = "4096")]
    tile: String,
    /// How the sequence is split over ranks: none, ring or ulysses
    #[arg(long, value_name = "HOW", value_parser = ["none", "ring", "ulysses"], default_value = "none")]
    cp: String,
    /// Ranks that share the sequence
    #[arg(long, value_name = "N", default_value_t = 1)]
    ranks: usize,
    /// Type of AdamW's moments: bf16 or f32
    #[arg(long, value_name = "TYPE", value_parser = ["bf16", "f32"], default_value = "bf16")]
    moments: String,
    #[command(flatten)]
    pub yarn: YarnOptions,
}

/// How positions are scaled.
#[derive(Debug, clap::Args)]
pub struct YarnOptions {
    /// Scale positions by YaRN with this factor, in place of the model's own rope
    #[arg(long, value_name = "FACTOR")]
    pub yarn: Option<f64>,
    /// The length that YaRN's factor stretches [default: the model's max_position_embeddings]
    #[arg(long, value_name = "TOKENS", requires = "yarn")]
    original: Option<String>,
}

impl YarnOptions {
    /// The rope in force, for a model whose own is `own`.
    pub fn rope(&self, config: &ModelConfig, own: &Rope) -> Result<Rope> {
        let Some(factor) = self.yarn else { return Ok(own.clone()) };
        let original = self.original.as_deref().map_or(Ok(config.max_position_embeddings), parse_tokens)?;
        let rope = Rope::Yarn(Yarn::new(config.rope_theta, factor, original));
        rope.validate()?;
        Ok(rope)
    }
}

/// The factor that stretches `original` tokens to `length`.
pub fn covering_factor(length: u64, original: u64) -> u64 {
    length.div_ceil(original.max(1))
}

/// What is wrong with a rope at a length, and what would be right; none: nothing.
pub fn not_covered(rope: &Rope, config: &ModelConfig, length: u64) -> Option<String> {
    let own = config.max_position_embeddings;
    match rope {
        Rope::Yarn(yarn) if !rope.covers(length) => Some(format!(
            "YaRN's factor {} over {} tokens covers fewer than {}: the right factor is {}",
            yarn.factor,
            format_tokens(yarn.original),
            format_tokens(length),
            covering_factor(length, yarn.original)
        )),
        Rope::Default { .. } if length > own => Some(format!(
            "{} tokens are more than the model's {}, without scaling: give --yarn {}",
            format_tokens(length),
            format_tokens(own),
            covering_factor(length, own)
        )),
        _ => None,
    }
}

impl ToggleOptions {
    /// The toggles, checked for a model whose own rope is `own`.
    pub fn toggles(&self, config: &ModelConfig, own: &Rope) -> Result<Toggles> {
        let toggles = Toggles {
            loss: if self.loss == "full" { Loss::Full } else { Loss::Chunked { rows: self.chunk_rows } },
            rope: self.yarn.rope(config, own)?,
            keep: if self.keep == "inputs" { Keep::Inputs } else { Keep::Attention },
            offload: if self.offload == "none" { Offload::None } else { Offload::Host },
            every: self.every,
            tile: parse_tokens(&self.tile)? as usize,
            cp: match &self.cp[..] {
                "ring" => ContextParallel::Ring,
                "ulysses" => ContextParallel::Ulysses,
                _ => ContextParallel::None,
            },
            ranks: self.ranks,
            moments: if self.moments == "f32" { Moments::F32 } else { Moments::Bf16 },
        };
        match crate::ladder::validate::toggles(&toggles, config) {
            Ok(_) => Ok(toggles),
            Err(error) => bad_input!("{error}"),
        }
    }
}
