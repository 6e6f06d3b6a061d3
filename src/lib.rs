//! `ablation` trains Qwen3 models on very long sequences, one technique at a
//! time, and shows what each costs.

pub mod data;
pub mod error;
pub mod memory;
pub mod record;
