//! The toggles of a rung: what the ladder adds one at a time.

use serde::{Deserialize, Serialize};

use crate::device::DType;
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keep {
    /// Its input; all else is computed again.
    Inputs,
    /// Its input, the attention output and the log-sum-exp: attention is never computed again.
    Attention,
}

/// Where kept activations live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// On the device.
    None,
    /// In host memory.
    Host,
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

impl Moments {
    /// The buffers' type.
    pub fn dtype(self) -> DType {
        match self {
            Moments::Bf16 => DType::Bf16,
            Moments::F32 => DType::F32,
        }
    }
}
