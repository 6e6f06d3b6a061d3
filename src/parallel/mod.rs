//! Ranks: how a sequence, its attention and the weights are split over them.

pub mod attention;
pub mod comm;
pub mod local;
pub mod ring;
pub mod shard;
pub mod split;
pub mod ulysses;
