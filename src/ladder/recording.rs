//! From an attempt's outcome to its rows.

use std::time::{SystemTime, UNIX_EPOCH};

use super::attempt::Attempt;
use super::run::{Ladder, status};
use crate::model::rope::Rope;
use crate::parallel::split;
use crate::record::run::{PositionBand, Run, Status, TimelinePoint};
use crate::train::bands::{BANDS, bands};
use crate::train::toggles::{Keep, Loss, Offload};
use crate::train::world::{Outcome, RankReport};

/// What an attempt left, and what was measured of it from outside.
pub(super) struct Measured {
    pub outcome: Outcome,
    pub started: SystemTime,
    /// Peak of the process's heap over its level before, bytes.
    pub process_peak: u64,
}

fn positions((run, started_unix_ms): (u32, i64), outcome: &Outcome) -> Vec<PositionBand> {
    let steps = outcome.steps.iter().zip(0u32..);
    let rows = steps.flat_map(|(report, step)| {
        // Without labels every position but the last has a target.
        let bands = bands(&report.losses, BANDS, |i| i + 1 < report.losses.len());
        bands.into_iter().map(move |band| PositionBand {
            run,
            started_unix_ms,
            step,
            start_token: band.start as u64,
            end_token: band.end as u64,
            targets: band.targets as u64,
            mean_loss: band.loss,
        })
    });
    rows.collect()
}

fn timeline((run, started_unix_ms): (u32, i64), ranks: &[RankReport]) -> Vec<TimelinePoint> {
    let mut points = Vec::new();
    for (rank, report) in ranks.iter().enumerate() {
        for segment in &report.timeline {
            points.push(TimelinePoint {
                run,
                started_unix_ms,
                rank: rank as u32,
                step: segment.mark.step,
                seconds: segment.seconds,
                phase: segment.mark.phase.key().to_string(),
                layer: segment.mark.layer.map_or(-1, |l| l as i32),
                device: segment.device,
                host: segment.host,
            });
        }
    }
    points
}

/// A count in the 64 bits of its column; no run on a machine leaves them.
fn whole(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The rows of an attempt.
pub(super) fn record(
    number: u32,
    ladder: &Ladder,
    attempt: &Attempt,
    measured: &Measured,
) -> (Run, Vec<TimelinePoint>, Vec<PositionBand>) {
    let (e, machine) = (&ladder.experiment, &ladder.machine);
    let (outcome, toggles, model) = (&measured.outcome, &attempt.rung.toggles, &e.model);
    let (status, reason) = match &attempt.refusal {
        Some(reason) => (Status::Refused, reason.clone()),
        None => status(outcome.error.as_ref()),
    };
    let fullest = |r: &&RankReport| r.device.bytes.total();
    // Without a rank nothing ran and nothing was held.
    let nothing = RankReport::default();
    let fullest = outcome.ranks.iter().max_by_key(fullest).unwrap_or(&nothing);
    let layers = model.num_hidden_layers;
    let kept = layers - toggles.keep.attention_from(layers);
    let (host_inputs, host_attention) = toggles.offload.layers();
    let yarn = match &toggles.rope {
        Rope::Yarn(yarn) => Some(yarn),
        Rope::Default { .. } => None,
    };
    let padded = split::padded(attempt.length as usize, toggles.cp.scheme(), toggles.ranks) as u64;
    let mut run = Run {
        run: number,
        experiment: e.name.clone(),
        rung: attempt.rung.name.clone(),
        purpose: attempt.purpose.key().to_string(),
        loss_kind: if toggles.loss == Loss::Full { "full" } else { "chunked" }.to_string(),
        loss_chunk_rows: match toggles.loss {
            Loss::Full => None,
            Loss::Chunked { rows } => Some(rows as u32),
        },
        rope: if yarn.is_some() { "yarn" } else { "default" }.to_string(),
        yarn_factor: yarn.map(|y| y.factor),
        yarn_original_tokens: yarn.map(|y| y.original),
        keep: if toggles.keep == Keep::Inputs { "inputs" } else { "attention" }.to_string(),
        offload: if toggles.offload == Offload::None { "none" } else { "host" }.to_string(),
        keep_attention_layers: Some(kept as u32),
        offload_input_layers: Some(host_inputs.min(layers) as u32),
        offload_attention_layers: Some(host_attention.min(kept) as u32),
        every: toggles.every as u32,
        tile_tokens: toggles.tile as u64,
        context_parallel: toggles.cp.key().to_string(),
        ranks: toggles.ranks as u32,
        moments: toggles.moments.key().to_string(),
        learning_rate: e.learning_rate,
        model: model.name.clone(),
        layers: model.num_hidden_layers as u32,
        hidden_size: model.hidden_size as u32,
        intermediate_size: model.intermediate_size as u32,
        attention_heads: model.num_attention_heads as u32,
        key_value_heads: model.num_key_value_heads as u32,
        head_dim: model.head_dim as u32,
        vocabulary: model.vocab_size as u32,
        tied_head: model.tie_word_embeddings,
        parameters: model.parameters(),
        length_tokens: attempt.length,
        padded_tokens: padded,
        valid_targets: outcome.steps.first().map_or(attempt.length - 1, |s| s.valid_targets),
        steps: attempt.steps,
        status,
        reason,
        loss: outcome.steps.iter().map(|s| s.loss).collect(),
        gradient_norm: outcome.steps.iter().map(|s| s.gradient_norm).collect(),
        tokens_per_second: None,
        step_seconds: outcome.steps.iter().map(|s| s.seconds).collect(),
        budget_bytes: e.budget,
        peak_device_bytes: fullest.device.bytes.total(),
        at_peak_device: fullest.device.bytes,
        peak_phase: fullest.device.mark.phase.key().to_string(),
        peak_layer: fullest.device.mark.layer.map_or(-1, |l| l as i32),
        peak_host_bytes: fullest.host.bytes.total(),
        at_peak_host: fullest.host.bytes,
        predicted_peak_device_bytes: attempt.planned.device.bytes.total(),
        predicted_at_peak_device: Some(attempt.planned.device.bytes),
        predicted_at_peak_host: Some(attempt.planned.host.bytes),
        predicted_peak_host_bytes: attempt.planned.host.bytes.total(),
        peak_process_ledger_bytes: outcome.process_peak,
        peak_process_measured_bytes: measured.process_peak,
        model_flops: whole(model.model_flops(attempt.length)),
        hardware_flops: whole(outcome.ranks.iter().map(|r| r.counts.flops()).sum()),
        communication_bytes: outcome.ranks.iter().map(|r| r.counts.communication_bytes).sum(),
        host_link_bytes: outcome.ranks.iter().map(|r| r.counts.host_link_bytes()).sum(),
        seed: e.seed,
        text: ladder.corpus.name.clone(),
        tokens_sha256: Some(ladder.tokens_sha256.clone()),
        device: "cpu".to_string(),
        program_version: machine.program_version.to_string(),
        git_revision: machine.git_revision.to_string(),
        program_sha256: machine.program_sha256.clone(),
        store_path: machine.store_path.clone(),
        experiment_toml: ladder.toml.clone(),
        host_name: machine.host_name.clone(),
        cpu: machine.cpu.clone(),
        cores: machine.cores,
        gpu: None,
        driver: None,
        started_unix_ms: measured.started.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64),
    };
    run.tokens_per_second = run.mean_step_seconds().map(|seconds| attempt.length as f64 / seconds);
    let key = (run.run, run.started_unix_ms);
    (run, timeline(key, &outcome.ranks), positions(key, outcome))
}
