//! `ablation` trains Qwen3 models on very long sequences, one technique at a
//! time, and shows what each costs.

pub mod data;
pub mod device;
pub mod error;
pub mod ladder;
pub mod memory;
pub mod model;
pub mod parallel;
pub mod plan;
pub mod record;
pub mod report;
pub mod train;
pub mod units;

#[global_allocator]
static ALLOCATOR: memory::allocator::Counting = memory::allocator::Counting;
