//! What must not change the result: where activations live, how rows are tiled, how
//! many ranks share the work.

mod common;

use ablation::device::IGNORED;
use ablation::memory::category::Category;
use ablation::model::config::ModelConfig;
use ablation::model::rope::Rope;
use ablation::train::toggles::*;
use ablation::train::world::{Job, Row, plan, run};
use ablation::verify::probe::{differing_bits, farthest};
use common::*;
use proptest::prelude::*;

fn config(heads: usize, kv_heads: usize, head_dim: usize, layers: usize, tied: bool) -> ModelConfig {
    ModelConfig {
        name: "tiny".to_string(),
        vocab_size: 97,
        hidden_size: 24,
        intermediate_size: 40,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        max_position_embeddings: 64,
        tie_word_embeddings: tied,
        qk_norm: true,
    }
}

fn row(length: usize, vocabulary: usize, seed: usize) -> Row {
    Row { ids: (0..length).map(|i| ((i * i * 31 + i * 17 + seed) % vocabulary) as u32).collect(), labels: None }
}

fn plain() -> Toggles {
    toggles(Rope::Default { theta: 1e4 })
}

fn same_bits(a: &Left, b: &Left) {
    assert_eq!(differing_bits(a, b).unwrap(), 0, "the gradient of {:?} is off", farthest(&a.gradients, &b.gradients));
}

fn near(a: &Left, b: &Left, what: &str) {
    for (x, y) in a.outcome.steps.iter().zip(&b.outcome.steps) {
        assert!((x.loss / y.loss - 1.0).abs() <= 1e-6, "{what}: loss {} and {}", x.loss, y.loss);
        assert_eq!(x.valid_targets, y.valid_targets);
    }
    let (tensor, off) = farthest(&a.gradients, &b.gradients);
    assert!(off <= 1e-5, "{what}: gradient of {tensor} is off by {off}");
}

/// failures.md 34, 35: over several steps, with poisoned memory behind every copy.
#[test]
fn keep_offload_and_every_change_no_bit() {
    let config = config(4, 2, 8, 5, true);
    let rows: Vec<Row> = (0..3).map(|i| row(75, 97, i)).collect();
    let base = train(&config, &plain(), &UNIFORM, &rows);
    for keep in [Keep::Inputs, Keep::Attention] {
        for offload in [Offload::None, Offload::Host] {
            for every in [1, 2, 3, 5] {
                let toggles = Toggles { keep, offload, every, ..plain() };
                same_bits(&train(&config, &toggles, &UNIFORM, &rows), &base);
            }
        }
    }
}

#[test]
fn the_same_run_twice_leaves_the_same_bits() {
    let config = config(4, 2, 8, 2, true);
    let rows: Vec<Row> = (0..2).map(|i| row(130, 97, i)).collect();
    for cp in [ContextParallel::Ring, ContextParallel::Ulysses] {
        let toggles = Toggles { cp, ranks: 4, moments: Moments::Bf16, ..plain() };
        same_bits(&train(&config, &toggles, &UNIFORM, &rows), &train(&config, &toggles, &UNIFORM, &rows));
    }
}

/// Tile and chunk sizes change the order of sums: the loss per token not even that.
#[test]
fn tiles_and_chunks_change_the_order_of_sums_alone() {
    let config = config(6, 2, 8, 2, false);
    let rows = [row(203, 97, 3)];
    let base = train(&config, &plain(), &UNIFORM, &rows);
    for tile in [32, 37, 64, 100, 200] {
        for loss in [Loss::Full, Loss::Chunked { rows: tile }] {
            let left = train(&config, &Toggles { tile, loss, ..plain() }, &UNIFORM, &rows);
            near(&left, &base, &format!("{loss:?}, tile {tile}"));
            let (a, b) = (&left.outcome.steps[0].losses, &base.outcome.steps[0].losses);
            assert!(a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()), "{loss:?}, tile {tile}: token losses");
        }
    }
}

/// failures.md 2, 4, 16, 17, 41: ring and ulysses, KV heads replicated, odd lengths that
/// need padding, lengths shorter than the split.
#[test]
fn ranks_change_nothing_but_the_order_of_sums() {
    let config = config(8, 2, 8, 2, true);
    for length in [3, 96, 131] {
        let rows = [row(length, 97, 1)];
        let base = train(&config, &plain(), &UNIFORM, &rows);
        for cp in [ContextParallel::Ring, ContextParallel::Ulysses] {
            for ranks in [2, 4, 8] {
                let toggles = Toggles { cp, ranks, loss: Loss::Chunked { rows: 32 }, ..plain() };
                near(&train(&config, &toggles, &UNIFORM, &rows), &base, &format!("{cp:?} × {ranks}, {length} tokens"));
            }
        }
    }
}

/// failures.md 4, 6: a rank whose targets are all ignored, and unequal counts.
#[test]
fn a_rank_without_targets_counts_for_nothing() {
    let config = config(4, 4, 8, 2, false);
    let mut labelled = row(64, 97, 5);
    let labels = labelled.ids.iter().enumerate();
    labelled.labels = Some(labels.map(|(i, id)| if (40..52).contains(&i) { *id } else { IGNORED }).collect());
    let rows = [labelled];
    let base = train(&config, &plain(), &UNIFORM, &rows);
    assert_eq!(base.outcome.steps[0].valid_targets, 12);
    for cp in [ContextParallel::Ring, ContextParallel::Ulysses] {
        for ranks in [2, 4] {
            let toggles = Toggles { cp, ranks, ..plain() };
            near(&train(&config, &toggles, &UNIFORM, &rows), &base, &format!("{cp:?} × {ranks}"));
        }
    }
}

/// failures.md 6: no valid target at all gives zero, not NaN.
#[test]
fn no_target_gives_zero_loss_and_zero_gradients() {
    let config = config(4, 2, 8, 2, true);
    let ids = row(40, 97, 0).ids;
    let rows = [Row { labels: Some(vec![IGNORED; ids.len()]), ids }];
    for (cp, ranks) in [(ContextParallel::None, 1), (ContextParallel::Ring, 2)] {
        for loss in [Loss::Full, Loss::Chunked { rows: 16 }] {
            let left = train(&config, &Toggles { loss, cp, ranks, ..plain() }, &UNIFORM, &rows);
            assert_eq!((left.outcome.steps[0].loss, left.outcome.steps[0].gradient_norm), (0.0, 0.0));
            assert!(left.gradients.values().flatten().all(|g| *g == 0.0));
        }
    }
}

/// failures.md 43: clipping takes the norm over all shards. After a clipped step the
/// weights of 4 ranks equal those of one.
#[test]
fn an_update_under_clipping_does_not_depend_on_sharding() {
    let config = config(4, 2, 8, 2, true);
    let rows: Vec<Row> = (0..2).map(|i| row(80, 97, i)).collect();
    let base = train(&config, &plain(), &UNIFORM, &rows);
    assert!(base.outcome.steps[0].gradient_norm > 1.0, "nothing is clipped here");
    for cp in [ContextParallel::Ring, ContextParallel::Ulysses] {
        let left = train(&config, &Toggles { cp, ranks: 4, ..plain() }, &UNIFORM, &rows);
        let (tensor, off) = farthest(&left.weights, &base.weights);
        assert!(off <= 1e-4, "{tensor} is off by {off}");
        let norms = (left.outcome.steps[0].gradient_norm, base.outcome.steps[0].gradient_norm);
        assert!((norms.0 / norms.1 - 1.0).abs() < 1e-6, "{norms:?}");
    }
}

/// failures.md 7 in its causal form: what comes later changes nothing that came before.
#[test]
fn later_tokens_do_not_reach_earlier_losses() {
    let config = config(4, 2, 8, 2, true);
    let (first, mut changed) = (row(64, 97, 2), row(64, 97, 2));
    changed.ids[50] = (changed.ids[50] + 1) % 97;
    for (cp, ranks) in [(ContextParallel::None, 1), (ContextParallel::Ring, 4), (ContextParallel::Ulysses, 4)] {
        let toggles = Toggles { cp, ranks, ..plain() };
        let a = train(&config, &toggles, &UNIFORM, std::slice::from_ref(&first));
        let b = train(&config, &toggles, &UNIFORM, std::slice::from_ref(&changed));
        let (a, b) = (&a.outcome.steps[0].losses, &b.outcome.steps[0].losses);
        assert!(a[..49] == b[..49], "{cp:?}: an earlier loss changed");
        assert!(a[49] != b[49] && a[50..63].iter().zip(&b[50..63]).all(|(a, b)| a != b), "{cp:?}: a later one did not");
    }
}

fn any_toggles() -> impl Strategy<Value = (Toggles, usize, bool)> {
    let choice = (0..3usize, prop_oneof![Just(1usize), Just(2), Just(4), Just(8)], any::<[bool; 3]>());
    // What is kept of all three layers or of some, and where: what the plan may choose.
    let keep = prop_oneof![Just(Keep::Inputs), Just(Keep::Attention), (1..=3usize).prop_map(Keep::Layers)];
    let offload = (0..3usize, 0..=3usize, 0..=3usize);
    (choice, keep, offload, 1..4usize, 16..80usize, 5..150usize).prop_map(
        |(choice, keep, offload, every, tile, length)| {
            let (cp, ranks, flags) = choice;
            let kept = 3 - keep.attention_from(3);
            let offload = match offload {
                (0, ..) => Offload::None,
                (1, ..) => Offload::Host,
                (_, inputs, attention) => Offload::Layers { inputs, attention: attention.min(kept) },
            };
            let cp = [ContextParallel::None, ContextParallel::Ring, ContextParallel::Ulysses][cp];
            let toggles = Toggles {
                loss: if flags[0] { Loss::Full } else { Loss::Chunked { rows: tile } },
                rope: Rope::Default { theta: 1e4 },
                keep,
                offload,
                every,
                tile,
                cp,
                ranks: if cp == ContextParallel::None { 1 } else { ranks },
                moments: if flags[1] { Moments::Bf16 } else { Moments::F32 },
            };
            (toggles, length, flags[2])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// All toggles at once: the plain step's loss and gradients; the plan's peak equals the
    /// ledger's, by category, to the byte; and nothing is held at the end.
    #[test]
    fn any_setting_computes_the_plain_step_as_planned((toggles, length, tied) in any_toggles()) {
        let config = config(8, 2, 8, 3, tied);
        let rows = [row(length, 97, 4), row(length, 97, 9)];
        let left = train(&config, &toggles, &UNIFORM, &rows);
        near(&train(&config, &toggles, &UNIFORM, &rows[..1]), &train(&config, &plain(), &UNIFORM, &rows[..1]), "plain");
        prop_assert_eq!(left.outcome.left_bytes, 0);
        let (planned, result) = plan(&config, &toggles, None, length);
        result.unwrap();
        for rank in &left.outcome.ranks {
            prop_assert!(rank.device.bytes.total() <= planned.device.bytes.total());
            prop_assert_eq!(rank.host.bytes, planned.host.bytes);
            prop_assert_eq!(rank.counts.products_and_copies(), planned.counts.products_and_copies());
        }
        // The plan is that of the last rank, which holds the most.
        let last = &left.outcome.ranks[toggles.ranks - 1];
        prop_assert_eq!(last.device, planned.device);
        prop_assert_eq!(last.counts, planned.counts);
        prop_assert_eq!(last.timeline.len(), planned.timeline.len());
        for (ours, plan) in last.timeline.iter().zip(&planned.timeline) {
            prop_assert_eq!(ours.device, plan.device);
        }
    }
}

/// A budget is refused at the byte that the plan says, on every rank alike, and the
/// refusal says who holds what.
#[test]
fn a_budget_one_byte_under_the_plan_is_refused() {
    let config = config(4, 2, 8, 3, true);
    for (cp, ranks) in [(ContextParallel::None, 1), (ContextParallel::Ring, 2), (ContextParallel::Ulysses, 4)] {
        let toggles = Toggles { cp, ranks, offload: Offload::Host, ..plain() };
        let peak = plan(&config, &toggles, None, 96).0.device.bytes.total();
        assert!(plan(&config, &toggles, Some(peak), 96).1.is_ok());
        assert!(plan(&config, &toggles, Some(peak - 1), 96).1.is_err());
        let rows = [row(96, 97, 0), row(96, 97, 1)];
        for (budget, fits) in [(peak, true), (peak - 1, false)] {
            let optimizer =
                ablation::train::step::Optimizer { learning_rate: 1e-3, steps: 2, max_gradient_norm: 1.0, seed: 0 };
            let job = Job {
                config: &config,
                toggles: &toggles,
                optimizer,
                budget: Some(budget),
                rows: &rows,
                source: &UNIFORM,
            };
            let outcome = run(&job, &Default::default(), &|_, _| {});
            match outcome.error {
                None => assert!(fits),
                Some(error) => {
                    assert!(!fits, "{error}");
                    let refusal =
                        error.downcast_ref::<ablation::memory::ledger::OutOfMemory>().expect("the first cause");
                    assert_eq!(refusal.budget, budget);
                    assert!(refusal.held.of(Category::Weights) > 0);
                }
            }
        }
    }
}
