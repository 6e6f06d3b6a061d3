//! What one run leaves behind, as plain data: the rows of the three Parquet files.

use crate::memory::category::{Bytes, Category};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// All steps ran.
    Ok,
    /// The ledger refused a buffer beyond the budget.
    OutOfMemory,
    /// Not started: the plan says that it can't fit or can't be right.
    Refused,
    /// It ended with another error.
    Failed,
}

impl Status {
    /// The name in the `status` column.
    pub fn key(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::OutOfMemory => "out_of_memory",
            Status::Refused => "refused",
            Status::Failed => "failed",
        }
    }

    /// The inverse of [`Status::key`].
    pub fn from_key(key: &str) -> Option<Status> {
        [Status::Ok, Status::OutOfMemory, Status::Refused, Status::Failed].into_iter().find(|s| s.key() == key)
    }
}

/// One attempt: one rung at one length. A row of `runs.parquet`.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Number of the attempt within its folder, from 0; joins the three files.
    pub run: u32,
    /// Name of the experiment.
    pub experiment: String,
    /// Name of the rung.
    pub rung: String,
    /// What the attempt is for: `curve` (a point of the memory curve), `longest`
    /// (the longest length that fits) or `beyond` (the next length, expected not to fit).
    pub purpose: String,

    /// `full` or `chunked`.
    pub loss_kind: String,
    /// Rows of logits at a time; none for the full loss.
    pub loss_chunk_rows: Option<u32>,
    /// `default` or `yarn`.
    pub rope: String,
    /// YaRN's factor.
    pub yarn_factor: Option<f64>,
    /// YaRN's original length, in tokens.
    pub yarn_original_tokens: Option<u64>,
    /// `inputs` or `attention`.
    pub keep: String,
    /// Layers that keep their attention output; none in records from before it was kept.
    pub keep_attention_layers: Option<u32>,
    /// `none` or `host`.
    pub offload: String,
    /// Layers whose input goes to host memory, as far as it is a checkpoint.
    pub offload_input_layers: Option<u32>,
    /// Layers whose attention output goes to host memory.
    pub offload_attention_layers: Option<u32>,
    /// A checkpoint every this many layers.
    pub every: u32,
    /// Tokens that row-wise operations take at once.
    pub tile_tokens: u64,
    /// `none`, `ring` or `ulysses`.
    pub context_parallel: String,
    /// Workers of the world.
    pub ranks: u32,
    /// `bf16` or `f32`.
    pub moments: String,
    /// Learning rate of the first step.
    pub learning_rate: f64,

    /// Name of the model.
    pub model: String,
    pub layers: u32,
    pub hidden_size: u32,
    pub intermediate_size: u32,
    pub attention_heads: u32,
    pub key_value_heads: u32,
    pub head_dim: u32,
    pub vocabulary: u32,
    pub tied_head: bool,
    /// Parameters of the whole model.
    pub parameters: u64,

    /// Tokens of the sequence, as asked.
    pub length_tokens: u64,
    /// Tokens with the padding that the split needs.
    pub padded_tokens: u64,
    /// Targets that are not ignored, in a step.
    pub valid_targets: u64,
    /// Steps asked for.
    pub steps: u32,

    pub status: Status,
    /// Why it isn't `ok`: the error, with the ledger's table where memory ran out.
    pub reason: String,

    /// Mean loss over the valid targets, nats, by step.
    pub loss: Vec<f64>,
    /// Global gradient norm before clipping, by step.
    pub gradient_norm: Vec<f64>,
    /// Seconds, by step.
    pub step_seconds: Vec<f64>,
    /// Tokens a second over the steps after the first (over the first if it is alone).
    pub tokens_per_second: Option<f64>,

    /// Bytes that a rank may hold on its device.
    pub budget_bytes: Option<u64>,
    /// Peak of the fullest rank on its device, bytes (ledger).
    pub peak_device_bytes: u64,
    /// What that rank held on its device at that moment, by category.
    pub at_peak_device: Bytes,
    /// Phase of the step in which the peak stands.
    pub peak_phase: String,
    /// Layer in which the peak stands; -1 outside of the layers.
    pub peak_layer: i32,
    /// Peak of a rank's host memory for offload, bytes (ledger).
    pub peak_host_bytes: u64,
    /// What that rank held on the host at that moment, by category.
    pub at_peak_host: Bytes,
    /// The plan's peak on the device, bytes (dry device, same step).
    pub predicted_peak_device_bytes: u64,
    /// What the plan holds on the device at its peak, by category; none in records from before it was kept.
    pub predicted_at_peak_device: Option<Bytes>,
    /// The plan's peak in host memory, bytes.
    pub predicted_peak_host_bytes: u64,
    /// What the plan holds in host memory at its peak, by category.
    pub predicted_at_peak_host: Option<Bytes>,
    /// Peak of all ranks together, device and host, bytes (ledger).
    pub peak_process_ledger_bytes: u64,
    /// Peak of the process over its level before the run, bytes: not ours
    /// (on the CPU a counting global allocator).
    pub peak_process_measured_bytes: u64,

    /// FLOPs of a step: causal attention, no recompute; all ranks.
    pub model_flops: u64,
    /// FLOPs of a step: all that ran; all ranks.
    pub hardware_flops: u64,
    /// Bytes sent between ranks in a step, all ranks together.
    pub communication_bytes: u64,
    /// Bytes copied to and from host memory in a step, all ranks together.
    pub host_link_bytes: u64,

    pub seed: u64,
    /// Text that the sequence is from.
    pub text: String,
    /// SHA-256 of the token ids that sequences are cut from, little-endian u32, in hex.
    pub tokens_sha256: Option<String>,
    /// Device: `cpu`.
    pub device: String,
    pub program_version: String,
    pub git_revision: String,
    /// SHA-256 of the program's file, in hex.
    pub program_sha256: Option<String>,
    /// The program's path in a Nix store, where it ran from one.
    pub store_path: Option<String>,
    /// The experiment file, whole, with the command line's changes applied.
    pub experiment_toml: String,
    pub host_name: String,
    pub cpu: String,
    pub cores: u32,
    pub gpu: Option<String>,
    pub driver: Option<String>,
    /// Milliseconds since 1970-01-01 UTC.
    pub started_unix_ms: i64,
}

impl Run {
    /// The category in which the plan is farthest from the ledger at the device's peak, and by
    /// how many bytes it is above it; none without a plan by category or a measured peak.
    pub fn plan_farthest_off(&self) -> Option<(Category, i64)> {
        let planned = self.predicted_at_peak_device.filter(|_| self.peak_device_bytes > 0)?;
        let off = |c: Category| (c, planned.of(c) as i64 - self.at_peak_device.of(c) as i64);
        Category::ALL.into_iter().map(off).max_by_key(|(_, bytes)| bytes.abs())
    }

    /// Seconds of a step: the mean of those after the first, which carries warm-up, or the
    /// first if it is alone; none without a step, or where a time is no number.
    pub fn mean_step_seconds(&self) -> Option<f64> {
        let counted = if self.step_seconds.len() > 1 { &self.step_seconds[1..] } else { &self.step_seconds[..] };
        let mean = counted.iter().sum::<f64>() / counted.len() as f64;
        (mean.is_finite() && mean > 0.0).then_some(mean)
    }
}

/// What a rank held between two marks of the step. A row of `timeline.parquet`.
#[derive(Debug, Clone, PartialEq)]
pub struct TimelinePoint {
    pub run: u32,
    /// When its run started: with `run`, the key of the run's row.
    pub started_unix_ms: i64,
    pub rank: u32,
    /// Step, from 0.
    pub step: u32,
    /// Seconds since the run began, at the segment's start.
    pub seconds: f64,
    /// Phase: `load`, `forward`, `loss`, `backward`, `update` …
    pub phase: String,
    /// Layer; -1 outside of the layers.
    pub layer: i32,
    /// Bytes on the device at the segment's highest moment.
    pub device: Bytes,
    /// Bytes in host memory at the segment's highest moment.
    pub host: Bytes,
}

/// Mean loss of a band of positions. A row of `positions.parquet`.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionBand {
    pub run: u32,
    /// When its run started: with `run`, the key of the run's row.
    pub started_unix_ms: i64,
    /// Step, from 0.
    pub step: u32,
    /// First position of the band, tokens.
    pub start_token: u64,
    /// Position after the last of the band, tokens.
    pub end_token: u64,
    /// Valid targets in the band.
    pub targets: u64,
    /// Mean loss over them, nats; none where there is no valid target.
    pub mean_loss: Option<f64>,
}
