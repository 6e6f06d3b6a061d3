//! `ablation` trains Qwen3 models on very long sequences, one technique at a
//! time, and shows what each costs.

pub mod cli;
pub mod columns;
pub mod control;
pub mod data;
pub mod device;
pub mod doctor;
pub mod error;
pub mod files;
pub mod guard;
pub mod hash;
pub mod hub;
pub mod ladder;
pub mod memory;
pub mod mix;
pub mod model;
pub mod parallel;
pub mod plan;
pub mod progress;
pub mod record;
pub mod report;
pub mod study;
pub mod train;
pub mod units;
pub mod verify;

/// Writes a line to the standard error; a reader that has gone away must not end a run.
pub fn notice(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[global_allocator]
static ALLOCATOR: memory::allocator::Counting = memory::allocator::Counting;
