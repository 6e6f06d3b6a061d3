//! The checks: what may differ between two runs, and by how much.

use anyhow::{Result, ensure};
use serde::Deserialize;

use super::probe::{Left, Tensors, Uniform, differing_bits, differing_values, farthest, loss_difference, train, worse};
use super::{Check, oracle};
use crate::device::IGNORED;
use crate::memory::category::Category;
use crate::model::config::ModelConfig;
use crate::model::layout::Slot;
use crate::model::rope::{Rope, Yarn};
use crate::parallel::shard::WeightSource;
use crate::train::toggles::{ContextParallel, Keep, Loss, Moments, Offload, Toggles};
use crate::train::world::{Row, plan};

const THETA: f64 = 1e4;
const VOCABULARY: usize = 499;
const WEIGHTS: Uniform = Uniform { seed: 11, scale: 0.15 };

/// Two results that differ by the order of sums alone: of a loss, and of a tensor's
/// gradient as ‖Δ‖/‖ref‖.
const SUMS: [(&str, f64); 2] = [("loss, relative", 1e-6), ("gradient, relative", 1e-5)];
const BITS: [(&str, f64); 1] = [("values that differ", 0.0)];

/// A Qwen3 of 4 layers, 8 heads and 2 KV heads: 8 ranks of ulysses replicate the latter.
fn model() -> ModelConfig {
    ModelConfig {
        name: "verify".to_string(),
        vocab_size: VOCABULARY,
        hidden_size: 64,
        intermediate_size: 160,
        num_hidden_layers: 4,
        num_attention_heads: 8,
        num_key_value_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope_theta: THETA,
        max_position_embeddings: 256,
        tie_word_embeddings: true,
        qk_norm: true,
    }
}

fn plain() -> Toggles {
    Toggles::plain(Rope::Default { theta: THETA })
}

fn row(length: usize, seed: usize) -> Row {
    let id = |i: usize| ((i * i * 31 + i * 17 + seed * 7 + 3) % VOCABULARY) as u32;
    Row { ids: (0..length).map(id).collect(), labels: None }
}

/// Only tokens `40..52` of 128 are targets: most ranks of any world have none.
fn masked() -> Row {
    let row = row(128, 5);
    let label = |(i, id): (usize, &u32)| if (40..52).contains(&i) { *id } else { IGNORED };
    Row { labels: Some(row.ids.iter().enumerate().map(label).collect()), ..row }
}

fn run(toggles: &Toggles, rows: &[Row]) -> Result<Left> {
    train(&model(), toggles, &WEIGHTS, rows)
}

/// Bits that differ from the plain run over three steps, summed over the settings.
fn bits(settings: Vec<Toggles>) -> Result<Vec<f64>> {
    let rows: Vec<Row> = (0..3).map(|i| row(130, i)).collect();
    let base = run(&plain(), &rows)?;
    let mut differing = 0;
    for toggles in settings {
        differing += differing_bits(&run(&toggles, &rows)?, &base)?;
    }
    Ok(vec![differing as f64])
}

/// The largest differences of loss and gradient from the plain run, over settings and rows.
fn sums(settings: &[Toggles], rows: &[Row]) -> Result<Vec<f64>> {
    let (mut loss, mut gradient) = (0.0, 0.0);
    for row in rows {
        let base = run(&plain(), std::slice::from_ref(row))?;
        for toggles in settings {
            let left = run(toggles, std::slice::from_ref(row))?;
            loss = worse(loss, loss_difference(&left, &base));
            gradient = worse(gradient, farthest(&left.gradients, &base.gradients).1);
        }
    }
    Ok(vec![loss, gradient])
}

/// All checks of the CPU device, in the order of the table.
pub fn all() -> Vec<Check> {
    let mut checks = vec![
        Check::new("keep changes no bit", "attention, inputs", &BITS, || {
            bits(vec![Toggles { keep: Keep::Attention, ..plain() }])
        }),
        Check::new("offload changes no bit", "host, keep attention and inputs", &BITS, || {
            let offload = |keep| Toggles { keep, offload: Offload::Host, ..plain() };
            bits([Keep::Inputs, Keep::Attention].map(offload).to_vec())
        }),
        Check::new("every changes no bit", "2, 3, 4 layers, keep and offload either way", &BITS, || {
            let mut settings = Vec::new();
            for every in 2..=4 {
                for (keep, offload) in [(Keep::Inputs, Offload::None), (Keep::Attention, Offload::Host)] {
                    settings.push(Toggles { keep, offload, every, ..plain() });
                }
            }
            bits(settings)
        }),
        Check::new("the same run twice leaves the same bits", "ring and ulysses on 4 ranks", &BITS, twice),
        Check::new("tiles change the order of sums", "32, 37, 64, 100 tokens of 203", &SUMS, || {
            let tile = |tile| Toggles { tile, ..plain() };
            sums(&[32, 37, 64, 100].map(tile), &[row(203, 1)])
        }),
        Check::new("chunks change the order of sums", "32, 50, 101 rows of 203", &SUMS, || {
            let chunk = |rows| Toggles { loss: Loss::Chunked { rows }, ..plain() };
            sums(&[32, 50, 101].map(chunk), &[row(203, 2)])
        }),
        Check::new(
            "the chunked loss is the full one by position",
            "32, 50, 101, 203 rows; 128 tokens, most ignored",
            &BITS,
            losses_by_position,
        ),
    ];
    for (cp, name) in [(ContextParallel::Ring, "ring"), (ContextParallel::Ulysses, "ulysses")] {
        for ranks in [2, 4, 8] {
            checks.push(Check::new(
                format!("1 rank equals {ranks} by {name}"),
                "3, 131 and 160 tokens; 128, of which 12 are targets",
                &SUMS,
                move || {
                    let split = Toggles { cp, ranks, loss: Loss::Chunked { rows: 32 }, ..plain() };
                    sums(&[split], &[row(3, 0), row(131, 1), row(160, 2), masked()])
                },
            ));
        }
    }
    checks.extend([
        Check::new(
            "YaRN's tables are transformers'",
            "7 tables",
            &[("frequency, relative", 1e-6), ("attention factor, relative", 1e-6)],
            yarn,
        ),
        Check::new(
            "losses are those of candle-transformers' Qwen3",
            "tied and untied, 150 tokens",
            &[("loss of a token, nats", 1e-4)],
            published,
        ),
        Check::new(
            "gradients are finite differences",
            "every tensor, halves of its elements at random",
            &[("slope, relative", 2e-3)],
            finite_differences,
        ),
        Check::new(
            "the plan is the run",
            "none, ring and ulysses; keep, offload, every",
            &[("bytes of a category", 0.0), ("bytes left at the end", 0.0)],
            planned,
        ),
    ]);
    checks
}

fn twice() -> Result<Vec<f64>> {
    let rows = [row(130, 0), row(130, 1)];
    let mut differing = 0;
    for cp in [ContextParallel::Ring, ContextParallel::Ulysses] {
        let toggles = Toggles { cp, ranks: 4, moments: Moments::Bf16, ..plain() };
        differing += differing_bits(&run(&toggles, &rows)?, &run(&toggles, &rows)?)?;
    }
    Ok(vec![differing as f64])
}

fn losses_by_position() -> Result<Vec<f64>> {
    let mut differing = 0;
    for row in [row(203, 3), masked()] {
        let losses = |loss| -> Result<Vec<f32>> {
            let left = run(&Toggles { loss, ..plain() }, std::slice::from_ref(&row))?;
            Ok(left.outcome.steps[0].losses.clone())
        };
        let full = losses(Loss::Full)?;
        for rows in [32, 50, 101, 203] {
            differing += differing_values(&losses(Loss::Chunked { rows })?, &full);
        }
    }
    Ok(vec![differing as f64])
}

/// A table of transformers' `_compute_yarn_parameters`.
#[derive(Deserialize)]
struct YarnTable {
    rope_theta: f64,
    head_dim: usize,
    factor: f64,
    original_max_position_embeddings: u64,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
    attention_factor: Option<f64>,
    inv_freq: Vec<f64>,
    attention_scaling: f64,
}

/// Original lengths other than the model's longest, explicit factors, other betas, no truncation.
fn yarn() -> Result<Vec<f64>> {
    let tables: Vec<YarnTable> = serde_json::from_str(include_str!("yarn_tables.json"))?;
    ensure!(tables.len() == 7, "{} tables", tables.len());
    let (mut frequency, mut factor) = (0.0, 0.0);
    for table in tables {
        let usual = Yarn::new(table.rope_theta, table.factor, table.original_max_position_embeddings);
        let rope = Rope::Yarn(Yarn {
            beta_fast: table.beta_fast.unwrap_or(usual.beta_fast),
            beta_slow: table.beta_slow.unwrap_or(usual.beta_slow),
            truncate: table.truncate.unwrap_or(usual.truncate),
            attention_factor: table.attention_factor,
            ..usual
        });
        let ours = rope.inverse_frequencies(table.head_dim);
        ensure!(ours.len() == table.inv_freq.len(), "{} frequencies, not {}", ours.len(), table.inv_freq.len());
        for (ours, theirs) in ours.iter().zip(&table.inv_freq) {
            frequency = worse(frequency, (ours / theirs - 1.0).abs());
        }
        factor = worse(factor, (rope.attention_scaling() / table.attention_scaling - 1.0).abs());
    }
    Ok(vec![frequency, factor])
}

fn published() -> Result<Vec<f64>> {
    let mut off = 0.0;
    for tie_word_embeddings in [true, false] {
        let config = ModelConfig { tie_word_embeddings, ..model() };
        let row = row(150, 4);
        let theirs = oracle::published(&config, &WEIGHTS, &row)?;
        let toggles = Toggles { loss: Loss::Chunked { rows: 32 }, tile: 37, ..plain() };
        let left = train(&config, &toggles, &WEIGHTS, std::slice::from_ref(&row))?;
        let ours = &left.outcome.steps[0].losses;
        ensure!(ours.len() == theirs.len() + 1, "{} losses for {} targets", ours.len(), theirs.len());
        for (ours, theirs) in ours.iter().zip(&theirs) {
            off = worse(off, f64::from((ours - theirs).abs()));
        }
    }
    Ok(vec![off])
}

/// Weights moved along a direction in one tensor.
struct Moved<'a> {
    tensor: &'a str,
    direction: &'a [f32],
    by: f32,
}

impl WeightSource for Moved<'_> {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()> {
        WEIGHTS.read(slot, first, out)?;
        if slot.name == self.tensor {
            out.iter_mut().zip(&self.direction[first..]).for_each(|(w, d)| *w += self.by * d);
        }
        Ok(())
    }
}

/// The slope of the loss along a random half of each tensor's gradient, from five
/// points (fourth order), against that half's norm.
fn finite_differences() -> Result<Vec<f64>> {
    let config = ModelConfig { num_hidden_layers: 2, tie_word_embeddings: false, ..model() };
    let rows = [row(64, 6)];
    let loss = |source: &(dyn WeightSource + Sync)| -> Result<f64> {
        Ok(train(&config, &plain(), source, &rows)?.outcome.steps[0].loss)
    };
    let gradients: Tensors = train(&config, &plain(), &WEIGHTS, &rows)?.gradients;
    let mut off = 0.0;
    for (tensor, gradient) in &gradients {
        let key = tensor.bytes().fold(3, |key, byte| crate::mix::mix(key ^ u64::from(byte)));
        let half = |i: usize| crate::mix::mix(key ^ i as u64) & 1 == 0;
        let half: Vec<f32> = gradient.iter().enumerate().map(|(i, g)| if half(i) { *g } else { 0.0 }).collect();
        let norm = half.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        // Far enough that the loss's last bits don't count, near enough for its curvature.
        let step = 0.03;
        let direction: Vec<f32> = half.iter().map(|g| (f64::from(*g) / norm) as f32).collect();
        let at = |by: f32| loss(&Moved { tensor, direction: &direction, by });
        let near = at(step)? - at(-step)?;
        let far = at(2.0 * step)? - at(-2.0 * step)?;
        let slope = (8.0 * near - far) / (12.0 * f64::from(step));
        off = worse(off, (slope / norm - 1.0).abs());
    }
    Ok(vec![off])
}

/// The dry device's bytes by category against the ledger's: at the peak of the rank that
/// is planned, and on the host.
fn planned() -> Result<Vec<f64>> {
    let (mut bytes, mut left_over) = (0, 0);
    for (cp, ranks) in [(ContextParallel::None, 1), (ContextParallel::Ring, 4), (ContextParallel::Ulysses, 4)] {
        for (keep, offload, every) in
            [(Keep::Inputs, Offload::None, 1), (Keep::Attention, Offload::Host, 1), (Keep::Inputs, Offload::Host, 2)]
        {
            let loss = Loss::Chunked { rows: 32 };
            let toggles = Toggles { cp, ranks, keep, offload, every, loss, tile: 64, ..plain() };
            let left = run(&toggles, &[row(160, 7), row(160, 8)])?;
            let (planned, result) = plan(&model(), &toggles, None, 160);
            result?;
            let last = left.outcome.ranks.last().map(|r| (r.device.bytes, r.host.bytes));
            let (device, host) = last.unwrap_or_default();
            for category in Category::ALL {
                bytes = bytes.max(device.of(category).abs_diff(planned.device.bytes.of(category)));
                bytes = bytes.max(host.of(category).abs_diff(planned.host.bytes.of(category)));
            }
            left_over = left_over.max(left.outcome.left_bytes);
        }
    }
    Ok(vec![bytes as f64, left_over as f64])
}
