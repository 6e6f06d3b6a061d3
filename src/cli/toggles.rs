//! The toggles of a training step as options, for commands that take one setting.

use anyhow::Result;

use crate::bad_input;
use crate::memory::host::HostMemory;
use crate::model::config::ModelConfig;
use crate::model::rope::{Rope, Yarn};
use crate::train::toggles::{Auto, ContextParallel, Keep, Loss, Moments, Offload, Toggles};
use crate::units::{parse_bytes, parse_tokens};

/// How one training step is computed, for commands that take a --model.
#[derive(Debug, clap::Args)]
pub struct ToggleOptions {
    /// How the loss is computed: full (all logits at once) or chunked [default: chunked]
    #[arg(long, requires = "model", value_name = "KIND", value_parser = ["full", "chunked"])]
    loss: Option<String>,
    /// Rows of logits at a time of the chunked loss [default: 256]
    #[arg(long, requires = "model", value_name = "N")]
    chunk_rows: Option<usize>,
    /// What the forward pass keeps of a layer: inputs, attention (its output too), or auto, as
    /// the plan finds best
    #[arg(long, requires = "model", value_name = "WHAT", value_parser = ["inputs", "attention", "auto"])]
    keep: Option<String>,
    /// Where kept activations live: none (on the device), host, or auto
    #[arg(long, requires = "model", value_name = "WHERE", value_parser = ["none", "host", "auto"])]
    offload: Option<String>,
    /// A checkpoint every N layers, or auto
    #[arg(long, requires = "model", value_name = "N")]
    every: Option<String>,
    /// Tokens that row-wise operations take at once [default: 4096]
    #[arg(long, requires = "model", value_name = "TOKENS")]
    tile: Option<String>,
    /// How the sequence is split over ranks: none, ring or ulysses [default: ring, if there are ranks]
    #[arg(long, requires = "model", value_name = "HOW", value_parser = ["none", "ring", "ulysses"])]
    cp: Option<String>,
    /// Type of AdamW's moments: bf16 or f32 [default: bf16]
    #[arg(long, requires = "model", value_name = "TYPE", value_parser = ["bf16", "f32"])]
    moments: Option<String>,
    #[command(flatten)]
    pub yarn: YarnOptions,
}

/// How positions are scaled.
#[derive(Debug, clap::Args)]
pub struct YarnOptions {
    /// Scale positions by YaRN with this factor, in place of the model's own rope
    #[arg(long, requires = "model", value_name = "FACTOR")]
    pub yarn: Option<f64>,
    /// The length that YaRN's factor stretches [default: the model's max_position_embeddings]
    #[arg(long, requires = "yarn", value_name = "TOKENS")]
    pub original: Option<String>,
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

impl ToggleOptions {
    /// The toggles, checked for a model whose own rope is `own`, and which of them the plan
    /// is to choose. `auto`: those that it chooses where nothing is asked.
    pub fn toggles(&self, config: &ModelConfig, own: &Rope, ranks: usize, auto: Auto) -> Result<(Toggles, Auto)> {
        let loss = match (self.loss.as_deref(), self.chunk_rows) {
            (Some("full"), Some(_)) => {
                bad_input!("--chunk-rows is given with --loss full: it would be ignored; take it away")
            }
            (Some("full"), None) => Loss::Full,
            (_, rows) => Loss::Chunked { rows: rows.unwrap_or(256) },
        };
        let every = match self.every.as_deref() {
            None | Some("auto") => 1,
            Some(n) => match n.parse::<usize>() {
                Ok(n) => n,
                Err(_) => bad_input!("--every {n}: a number of layers, or auto"),
            },
        };
        let cp = match (self.cp.as_deref(), ranks) {
            (Some("ulysses"), _) => ContextParallel::Ulysses,
            (Some("ring"), _) => ContextParallel::Ring,
            (Some(_), _) | (None, 1) => ContextParallel::None,
            (None, _) => ContextParallel::Ring,
        };
        let tile = self.tile.as_deref().map_or(Ok(4096), parse_tokens)?;
        let toggles = Toggles {
            loss,
            rope: self.yarn.rope(config, own)?,
            keep: if self.keep.as_deref() == Some("attention") { Keep::Attention } else { Keep::Inputs },
            offload: if self.offload.as_deref() == Some("host") { Offload::Host } else { Offload::None },
            every,
            tile: usize::try_from(tile).unwrap_or(usize::MAX),
            cp,
            ranks,
            moments: if self.moments.as_deref() == Some("f32") { Moments::F32 } else { Moments::Bf16 },
        };
        toggles.validate(config)?;
        let left = |choice: &Option<String>, auto: bool| choice.as_deref().map_or(auto, |c| c == "auto");
        let auto = Auto {
            keep: left(&self.keep, auto.keep),
            offload: left(&self.offload, auto.offload),
            every: left(&self.every, auto.every),
        };
        Ok((toggles, auto))
    }
}

/// Room in host memory: as asked, or this machine's where the plan has to choose; and whether
/// it is this machine's.
pub fn host_room(asked: &Option<String>, auto: Auto) -> Result<(Option<u64>, bool)> {
    match asked {
        Some(bytes) => Ok((Some(parse_bytes(bytes)?), false)),
        None if auto.offload => Ok((HostMemory::here().map(|memory| memory.usable()), true)),
        None => Ok((None, false)),
    }
}
