//! Ranks: how a sequence, its attention and the weights are split over them.

pub mod attention;
pub mod comm;
pub mod local;
pub mod ring;
pub mod shard;
pub mod split;
pub mod ulysses;

/// Another rank failed first: this one stopped for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped, since another rank failed")]
pub struct Stopped;
