//! Rows like those of a small ladder, and tests that draw them.

use crate::memory::category::{Bytes, Category};
use crate::record::Records;
use crate::record::run::{PositionBand, Run, Status, TimelinePoint};

const MIB: f64 = 1_048_576.0;

/// What a rank holds at its peak, MiB by category, for one rung and length.
fn held(rung: &str, length: u64) -> Bytes {
    let tokens = length as f64 / if matches!(rung, "ring" | "ulysses") { 4.0 } else { 1.0 };
    let shared = matches!(rung, "ring" | "ulysses");
    let mut bytes = Bytes::default();
    let mut set = |category: Category, mib: f64| bytes.0[category as usize] = (mib * MIB) as u64;
    let part = if shared { 0.25 } else { 1.0 };
    set(Category::Weights, 2.1 * part);
    set(Category::Gradients, 2.1 * part);
    set(Category::Moments, 4.2 * part);
    set(Category::Tokens, tokens * 1.5e-5);
    set(Category::Rope, tokens * 9e-5);
    set(Category::Working, tokens * if rung == "plain" { 0.009 } else { 0.0045 });
    let kept = if matches!(rung, "plain" | "chunked" | "yarn") { tokens * 0.0030 } else { 0.15 };
    set(Category::LayerInputs, kept);
    set(Category::AttentionOutputs, kept * 0.2);
    set(Category::Logits, if rung == "plain" { tokens * 0.031 } else { 0.5 });
    set(Category::Scratch, 0.1);
    if shared {
        set(Category::GatheredWeights, 0.6);
        set(Category::UnitGradients, 0.6);
        set(Category::Communication, tokens * if rung == "ring" { 0.0006 } else { 0.0009 });
    }
    bytes
}

fn run(number: u32, rung: &str, purpose: &str, length: u64) -> Run {
    let beyond = purpose == "beyond";
    let peak = held(rung, length);
    let total = peak.total();
    let ranks = if matches!(rung, "ring" | "ulysses") { 4 } else { 1 };
    let seconds = 0.02
        + length as f64 * 4e-4
        + (length as f64).powi(2) * 4e-8
        + if rung == "ulysses" { 0.2 } else { 0.03 * f64::from(ranks) };
    let yarn = !matches!(rung, "plain" | "chunked");
    Run {
        run: number,
        experiment: "small".into(),
        rung: rung.into(),
        purpose: purpose.into(),
        loss_kind: if rung == "plain" { "full" } else { "chunked" }.into(),
        loss_chunk_rows: (rung != "plain").then_some(32),
        rope: if yarn { "yarn" } else { "default" }.into(),
        yarn_factor: yarn.then_some(6.0),
        yarn_original_tokens: yarn.then_some(192),
        keep: "inputs".into(),
        offload: if matches!(rung, "plain" | "chunked" | "yarn") { "none" } else { "host" }.into(),
        every: 1,
        tile_tokens: 128,
        context_parallel: if ranks > 1 { rung } else { "none" }.into(),
        ranks,
        moments: "bf16".into(),
        learning_rate: 2e-3,
        model: "qwen3-small".into(),
        layers: 8,
        hidden_size: 96,
        intermediate_size: 256,
        attention_heads: 4,
        key_value_heads: 2,
        head_dim: 24,
        vocabulary: 2048,
        tied_head: true,
        parameters: 1_008_000,
        length_tokens: length,
        padded_tokens: length,
        valid_targets: length - 1,
        steps: 4,
        status: if beyond { Status::OutOfMemory } else { Status::Ok },
        reason: String::new(),
        loss: if beyond { vec![] } else { vec![7.6, 7.1, 6.8, 6.6] },
        gradient_norm: vec![1.0; 4],
        step_seconds: if beyond { vec![] } else { vec![seconds * 1.3, seconds, seconds * 1.05, seconds * 0.97] },
        tokens_per_second: (!beyond).then_some(length as f64 / seconds),
        budget_bytes: Some(17 << 20),
        peak_device_bytes: total,
        at_peak_device: peak,
        peak_phase: "backward".into(),
        peak_layer: 7,
        peak_host_bytes: 0,
        at_peak_host: Bytes::default(),
        predicted_peak_device_bytes: total,
        predicted_at_peak_device: Some(peak),
        predicted_at_peak_host: Some(Bytes::default()),
        keep_attention_layers: Some(0),
        offload_input_layers: None,
        offload_attention_layers: Some(0),
        predicted_peak_host_bytes: 0,
        peak_process_ledger_bytes: total * u64::from(ranks),
        peak_process_measured_bytes: (total as f64 * f64::from(ranks) * (1.004 + 3.0 / length as f64)) as u64,
        model_flops: 1,
        hardware_flops: 1,
        communication_bytes: 0,
        host_link_bytes: 0,
        seed: 1,
        text: "emma".into(),
        tokens_sha256: None,
        device: "cpu".into(),
        program_version: "0.1.0".into(),
        git_revision: String::new(),
        program_sha256: None,
        store_path: None,
        experiment_toml: "[[rung]]\nname = \"ring\"\nstop_at = 6144\n[[rung]]\nname = \"ulysses\"\nstop_at = \"6k\""
            .into(),
        host_name: String::new(),
        cpu: String::new(),
        cores: 2,
        gpu: None,
        driver: None,
        started_unix_ms: 0,
    }
}

/// A step's marks of a run: 8 layers forward, the loss, 8 layers backward, the update.
fn timeline(run: &Run, records: &mut Records) {
    let full = run.at_peak_device;
    let second = run.step_seconds[0] / 30.0;
    let phases = [("forward", 9), ("loss", 3), ("backward", 14), ("update", 4)];
    for (step, start) in [(0, 0.0), (1, 30.0 * second)] {
        let mut at = 0;
        for (phase, count) in phases {
            for i in 0..count {
                let share = match phase {
                    "forward" => f64::from(i) / f64::from(count),
                    "loss" => 1.0,
                    "backward" => 1.0 - f64::from(i) / f64::from(count),
                    _ => 0.0,
                };
                let mut device = full;
                for c in [Category::LayerInputs, Category::AttentionOutputs] {
                    device.0[c as usize] = (full.of(c) as f64 * share) as u64;
                }
                device.0[Category::Logits as usize] = if phase == "loss" { full.of(Category::Logits) } else { 0 };
                let working = if phase == "update" { 0.05 } else { 0.6 + 0.4 * f64::from(i % 2) };
                device.0[Category::Working as usize] = (full.of(Category::Working) as f64 * working) as u64;
                let seconds = start + f64::from(at) * second;
                let (phase, host) = (phase.to_owned(), Bytes::default());
                let layer = i;
                records.timeline.push(TimelinePoint {
                    run: run.run,
                    started_unix_ms: run.started_unix_ms,
                    rank: 0,
                    step,
                    seconds,
                    phase,
                    layer,
                    device,
                    host,
                });
                at += 1;
            }
        }
    }
}

/// The rows of a whole ladder.
pub fn records() -> Records {
    let mut records = Records::default();
    let ladder: [(&str, &[u64], u64, Option<u64>); 6] = [
        ("plain", &[64, 128], 192, Some(208)),
        ("chunked", &[64, 128, 256, 512], 960, Some(976)),
        ("yarn", &[64, 128, 256, 512], 960, Some(976)),
        ("offload", &[64, 128, 256, 512, 1024], 1584, Some(1600)),
        ("ring", &[256, 512, 1024, 2048, 4096], 6144, None),
        ("ulysses", &[256, 512, 1024, 2048, 4096], 6144, None),
    ];
    for (rung, curve, longest, beyond) in ladder {
        let points = curve.iter().map(|&l| ("curve", l)).chain([("longest", longest)]);
        for (purpose, length) in points.chain(beyond.map(|l| ("beyond", l))) {
            let run = run(records.runs.len() as u32, rung, purpose, length);
            if purpose == "longest" {
                timeline(&run, &mut records);
                for (step, band) in (0..4).flat_map(|s| (0..8).map(move |b| (s, b))) {
                    let (start_token, end_token) = (length * band / 8, length * (band + 1) / 8);
                    let tilt = if rung == "chunked" { 0.004 } else { 0.001 } * band as f64;
                    let mean_loss = Some(7.6 - 0.3 * f64::from(step) - 0.02 * band as f64 + tilt);
                    let targets = end_token - start_token;
                    let (run, started_unix_ms) = (run.run, run.started_unix_ms);
                    let band = PositionBand { run, started_unix_ms, step, start_token, end_token, targets, mean_loss };
                    records.positions.push(band);
                }
            }
            records.runs.push(run);
        }
    }
    records
}
