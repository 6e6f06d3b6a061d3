//! Traps that long-context trainers fell into, each by its number in `failures.md`.

mod common;

use ablation::device::IGNORED;
use ablation::memory::category::{Bytes, Category};
use ablation::memory::ledger::Segment;
use ablation::model::config::ModelConfig;
use ablation::model::rope::{Rope, Yarn};
use ablation::parallel::split::{Scheme, split};
use ablation::train::toggles::*;
use ablation::train::world::{Row, plan};
use ablation::verify::probe::{differing_bits, farthest};
use common::*;

fn config() -> ModelConfig {
    ModelConfig {
        name: "tiny".to_string(),
        vocab_size: 211,
        hidden_size: 32,
        intermediate_size: 48,
        num_hidden_layers: 3,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        max_position_embeddings: 64,
        tie_word_embeddings: true,
        qk_norm: true,
    }
}

fn row(length: usize) -> Row {
    Row { ids: (0..length).map(|i| ((i * i * 31 + i * 17 + 5) % 211) as u32).collect(), labels: None }
}

fn plain() -> Toggles {
    toggles(Rope::Default { theta: 1e4 })
}

const SPLITS: [(ContextParallel, usize); 6] = [
    (ContextParallel::Ring, 2),
    (ContextParallel::Ring, 4),
    (ContextParallel::Ring, 8),
    (ContextParallel::Ulysses, 2),
    (ContextParallel::Ulysses, 4),
    (ContextParallel::Ulysses, 8),
];

/// failures.md 1, 22: the losses by position are those of one rank, each once, in the
/// order of positions, whatever the number of ranks and the padding.
#[test]
fn losses_by_position_do_not_depend_on_ranks() {
    let rows = [row(131)];
    let whole = train(&config(), &plain(), &UNIFORM, &rows);
    let whole = &whole.outcome.steps[0];
    for (cp, ranks) in SPLITS {
        let left = train(&config(), &Toggles { cp, ranks, ..plain() }, &UNIFORM, &rows);
        let step = &left.outcome.steps[0];
        assert_eq!((step.losses.len(), step.valid_targets), (131, 130));
        assert!((step.loss / whole.loss - 1.0).abs() <= 1e-6, "{cp:?} × {ranks}: {} and {}", step.loss, whole.loss);
        for (i, (ours, theirs)) in step.losses.iter().zip(&whole.losses).enumerate() {
            assert!((ours - theirs).abs() <= 1e-5, "{cp:?} × {ranks}, position {i}: {ours} and {theirs}");
        }
    }
}

/// failures.md 19, 20, 21, 42: each rank holds its share of the tokens under their global
/// positions, and what it computes depends on what the others sent.
#[test]
fn every_rank_holds_its_share_and_exchanges() {
    let ids = row(128).ids;
    for (cp, ranks) in SPLITS {
        for rank in 0..ranks {
            let part = split(&ids, None, cp.scheme(), ranks, rank).unwrap();
            assert_eq!(part.ids.len(), 128 / ranks);
            assert!(part.positions.iter().zip(&part.ids).all(|(p, id)| ids[*p as usize] == *id));
        }
        let left = train(&config(), &Toggles { cp, ranks, ..plain() }, &UNIFORM, &[row(128)]);
        for rank in &left.outcome.ranks {
            let held = rank.device.bytes.of(Category::LayerInputs);
            // One input a layer and the last hidden states, of the rank's tokens alone.
            assert!(held <= 4 * 128 / ranks as u64 * 32 * 4, "{cp:?} × {ranks}: {held} bytes of layer inputs");
            assert!(rank.counts.communication_bytes > 0);
        }
    }
    let whole = split(&ids, None, Scheme::Whole, 1, 0).unwrap();
    assert_eq!(whole.positions, (0..128).collect::<Vec<u32>>());
}

/// failures.md 10: layers that are computed again in the backward pass see the same part
/// of the sequence: no bit changes against keeping their attention.
#[test]
fn recomputing_under_a_split_changes_no_bit() {
    for (cp, ranks) in SPLITS {
        let split = Toggles { cp, ranks, ..plain() };
        let kept = train(&config(), &Toggles { keep: Keep::Attention, ..split.clone() }, &UNIFORM, &[row(131)]);
        for every in [1, 3] {
            let again =
                train(&config(), &Toggles { keep: Keep::Inputs, every, ..split.clone() }, &UNIFORM, &[row(131)]);
            assert_eq!(differing_bits(&again, &kept).unwrap(), 0, "{cp:?} × {ranks}");
        }
    }
}

/// failures.md 14: what f32 loses does not grow with the number of ranks.
#[test]
fn the_error_does_not_grow_with_ranks() {
    let rows = [row(256)];
    let base = train(&config(), &plain(), &UNIFORM, &rows);
    let off = |cp, ranks| {
        let left = train(&config(), &Toggles { cp, ranks, ..plain() }, &UNIFORM, &rows);
        farthest(&left.gradients, &base.gradients).1
    };
    for cp in [ContextParallel::Ring, ContextParallel::Ulysses] {
        for ranks in [2, 4, 8] {
            assert!(off(cp, ranks) <= 3e-6, "{cp:?} × {ranks}: {}", off(cp, ranks));
        }
    }
}

/// failures.md 27: every rank's rope comes from its own positions, with YaRN too.
#[test]
fn rope_is_right_on_every_rank() {
    let rope = Rope::Yarn(Yarn::new(1e4, 4.0, 64));
    let rows = [row(160)];
    let base = train(&config(), &toggles(rope.clone()), &UNIFORM, &rows);
    for (cp, ranks) in SPLITS {
        let left = train(&config(), &Toggles { cp, ranks, ..toggles(rope.clone()) }, &UNIFORM, &rows);
        let (tensor, off) = farthest(&left.gradients, &base.gradients);
        assert!(off <= 1e-5, "{cp:?} × {ranks}: {tensor} is off by {off}");
    }
}

/// failures.md 28: the head's weights are gathered, and its gradient reduced, once a
/// step, however many chunks there are.
#[test]
fn chunks_send_nothing_more() {
    let split = Toggles { cp: ContextParallel::Ring, ranks: 2, ..plain() };
    let sent = |loss| plan(&config(), &Toggles { loss, ..split.clone() }, None, 4096).0.counts.communication_bytes;
    let once = sent(Loss::Full);
    assert!(once > 0);
    for rows in [32, 256, 2048] {
        assert_eq!(sent(Loss::Chunked { rows }), once);
    }
    // The run does what the plan says.
    let chunked = Toggles { loss: Loss::Chunked { rows: 32 }, ..split };
    let left = train(&config(), &chunked, &UNIFORM, &[row(512)]);
    let planned = plan(&config(), &chunked, None, 512).0.counts;
    let planned = planned.products_and_copies();
    assert!(left.outcome.ranks.iter().all(|r| r.counts.products_and_copies() == planned));
}

/// failures.md 29: the head's gradient is summed over chunks in f32: no more is lost by
/// many chunks than by one.
#[test]
fn many_chunks_lose_no_more_than_one() {
    let config = ModelConfig { tie_word_embeddings: false, num_hidden_layers: 1, ..config() };
    let rows = [row(4096)];
    let gradient = |loss| train(&config, &Toggles { loss, ..plain() }, &UNIFORM, &rows).gradients;
    let one = gradient(Loss::Full);
    for rows in [32, 512] {
        let off = farthest(&gradient(Loss::Chunked { rows }), &one).1;
        assert!(off <= 1e-5, "chunks of {rows} rows: {off}");
    }
}

/// failures.md 32, 35: host memory is exactly what was kept, rounded up to nothing, and
/// holds nothing but kept activations.
#[test]
fn host_memory_is_what_is_kept() {
    let (tokens, hidden, layers) = (160, 32, 3);
    let offload = |keep| Toggles { offload: Offload::Host, keep, ..plain() };
    let host = |keep| train(&config(), &offload(keep), &UNIFORM, &[row(tokens)]).outcome.ranks[0].host.bytes;
    let only = |kept: &[(Category, u64)]| {
        let mut bytes = Bytes::default();
        kept.iter().for_each(|(category, n)| bytes.0[*category as usize] = *n);
        bytes
    };
    let inputs = (layers * tokens * hidden * 4) as u64;
    assert_eq!(host(Keep::Inputs), only(&[(Category::LayerInputs, inputs)]));
    // The output [tokens, 8 · 8] and the log-sum-exp [8, tokens].
    let attention = (layers * tokens * (64 + 8) * 4) as u64;
    let both = [(Category::LayerInputs, inputs), (Category::AttentionOutputs, attention)];
    assert_eq!(host(Keep::Attention), only(&both));
}

/// failures.md 33: from the second step on, memory is the same at every moment, and none is left.
#[test]
fn memory_is_flat_over_steps() {
    let rows = [row(100), row(100), row(100), row(100)];
    for (cp, ranks) in [(ContextParallel::None, 1), (ContextParallel::Ring, 2), (ContextParallel::Ulysses, 2)] {
        let toggles = Toggles { cp, ranks, offload: Offload::Host, keep: Keep::Attention, ..plain() };
        let left = train(&config(), &toggles, &UNIFORM, &rows);
        assert_eq!(left.outcome.left_bytes, 0);
        for rank in &left.outcome.ranks {
            let step = |number: u32| -> Vec<(Bytes, Bytes)> {
                let of_step = |s: &&Segment| s.mark.step == number;
                rank.timeline.iter().filter(of_step).map(|s| (s.device, s.host)).collect()
            };
            assert!(step(1).len() > 5);
            assert_eq!(step(1), step(2));
            assert_eq!(step(2), step(3));
        }
    }
}

/// failures.md 36: what offload leaves on the device is told beside what it moved: the
/// peak falls by the inputs of all layers but those that are at work.
#[test]
fn offload_lowers_the_peak_by_what_it_moves() {
    let config = ModelConfig { num_hidden_layers: 16, ..config() };
    let peak = |offload| plan(&config, &Toggles { offload, tile: 64, ..plain() }, None, 2048).0;
    let (with, without) = (peak(Offload::Host), peak(Offload::None));
    let input = 2048 * 32 * 4;
    assert_eq!(with.host.bytes.total(), 16 * input);
    let layers =
        |p: &ablation::train::world::RankReport| p.timeline.iter().map(|s| s.device.of(Category::LayerInputs)).max();
    assert_eq!(layers(&without), Some(16 * input));
    assert!(layers(&with) <= Some(4 * input));
    assert!(with.device.bytes.total() < without.device.bytes.total());
}

/// failures.md 38: sizes beyond 2³² elements: a million tokens of 4,096 values each.
#[test]
fn sizes_beyond_32_bits_are_planned_in_full() {
    let config = ModelConfig {
        vocab_size: 151_936,
        hidden_size: 4096,
        intermediate_size: 12_288,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        head_dim: 128,
        num_hidden_layers: 2,
        ..config()
    };
    let full = Toggles { tile: 1 << 20, ..plain() };
    let (planned, result) = plan(&config, &full, None, 1 << 20);
    result.unwrap();
    let highest = |category| planned.timeline.iter().map(|s| s.device.of(category)).max().unwrap();
    assert_eq!(highest(Category::LayerInputs), (3 * 4096 * 4) << 20);
    // Logits, their f32 copy and its gradient, 4 bytes each on the CPU.
    assert_eq!(highest(Category::Logits), (3 * 151_936 * 4) << 20);
}

/// failures.md 44: chunked is chunked: no more logits than a chunk's ever exist.
#[test]
fn a_chunked_loss_never_holds_all_logits() {
    for (cp, ranks) in [(ContextParallel::None, 1), (ContextParallel::Ring, 2)] {
        let toggles = Toggles { loss: Loss::Chunked { rows: 32 }, cp, ranks, ..plain() };
        let left = train(&config(), &toggles, &UNIFORM, &[row(512)]);
        for rank in &left.outcome.ranks {
            let most = rank.timeline.iter().map(|s| s.device.of(Category::Logits)).max().unwrap();
            assert_eq!(most, 32 * 211 * 4);
        }
    }
}

/// failures.md 31: the loss is a mean over targets, so the sum of two halves' gradients,
/// weighted by their targets, is the whole's: nothing else normalises.
#[test]
fn gradients_of_disjoint_targets_add_up() {
    let whole = row(96);
    let half = |first: bool| {
        let label = |(i, id): (usize, &u32)| if (i < 40) == first { *id } else { IGNORED };
        Row { labels: Some(whole.ids.iter().enumerate().map(label).collect()), ..whole.clone() }
    };
    let run = |row: Row| {
        let left = train(&config(), &plain(), &UNIFORM, &[row]);
        (left.outcome.steps[0].valid_targets as f32, left.gradients)
    };
    let ((n, all), (a, first), (b, second)) = (run(whole.clone()), run(half(true)), run(half(false)));
    assert_eq!((a, b, n), (39.0, 56.0, 95.0));
    let sum = first.iter().map(|(name, g)| {
        let sum = g.iter().zip(&second[name]).map(|(x, y)| (a * x + b * y) / n).collect();
        (name.clone(), sum)
    });
    let (tensor, off) = farthest(&sum.collect(), &all);
    assert!(off <= 1e-5, "{tensor} is off by {off}");
}
