//! The planner held to arithmetic by hand: the guide's numbers, its ladder, sizes far beyond
//! any machine's.

use std::time::Instant;

use ablation::device::dry::Profile;
use ablation::ladder::experiment::{Experiment, Rung};
use ablation::memory::allocator;
use ablation::memory::category::Category;
use ablation::memory::ledger::Phase;
use ablation::model::config::ModelConfig;
use ablation::model::published;
use ablation::model::rope::Rope;
use ablation::plan::ceilings::Ceilings;
use ablation::plan::{Plan, Room, Setting, compare};
use ablation::train::toggles::*;

const GIB: f64 = (1u64 << 30) as f64;
const M: u64 = 1 << 20;

fn toggles() -> Toggles {
    Toggles {
        loss: Loss::Chunked { rows: 256 },
        rope: Rope::Default { theta: 1e6 },
        keep: Keep::Inputs,
        offload: Offload::None,
        every: 1,
        tile: 4096,
        cp: ContextParallel::None,
        ranks: 1,
        moments: Moments::Bf16,
    }
}

fn setting(model: &ModelConfig, toggles: Toggles) -> Setting<'_> {
    Setting { profile: Profile::GPU, model, toggles, auto: Auto::default(), room: Room::default() }
}

fn plan(model: &ModelConfig, toggles: Toggles, length: u64) -> Plan {
    setting(model, toggles).plan(length).unwrap()
}

fn qwen(size: &str) -> ModelConfig {
    published::find(&format!("Qwen/Qwen3-{size}")).unwrap()
}

/// The most that a category holds at any moment, GiB.
fn most(plan: &Plan, category: Category) -> f64 {
    plan.rank.timeline.iter().map(|s| s.device.of(category)).max().unwrap() as f64 / GIB
}

fn near(what: &str, ours: f64, theirs: f64, slack: f64) {
    assert!((ours - theirs).abs() <= slack, "{what}: {ours} where {theirs} is right");
}

/// Qwen3-4B in bf16: weights and moments 22.5 GiB, with gradients 30.0.
#[test]
fn fixed_memory_is_the_guides() {
    let p = plan(&qwen("4B"), toggles(), 1024);
    let held = [Category::Weights, Category::Moments, Category::Gradients].map(|c| most(&p, c));
    near("weights and moments", held[0] + held[1], 22.48, 0.01);
    near("with gradients", held.iter().sum(), 29.97, 0.01);
}

/// Each tensor of the MLP's width is 19.0 GiB at 1M tokens untiled, so four are the guide's
/// 76. Three are held here: silu(gate) is never kept beside gate, up and their product.
#[test]
fn the_mlp_of_a_million_tokens_takes_nineteen_gib_a_tensor() {
    let whole = qwen("4B");
    let half = ModelConfig { intermediate_size: whole.intermediate_size / 2, ..whole.clone() };
    let untiled = Toggles { tile: 4 << 20, ..toggles() };
    let working = |model| most(&plan(model, untiled.clone(), M), Category::Working);
    // What half of the width takes, twice, is all that is as wide as the MLP.
    let tensors = 2.0 * (working(&whole) - working(&half));
    near("three tensors", tensors, 57.0, 0.01);
    near("the guide's four", tensors / 3.0 * 4.0, 76.0, 0.01);
    let tiled = most(&plan(&whole, toggles(), M), Category::Working);
    assert!(working(&whole) - tiled > 40.0, "tiles of 4,096 tokens leave {tiled} GiB");
}

/// failures.md 32: what offload pins is what is kept, rounded up to nothing: 288 GiB for the
/// layer inputs of Qwen3-8B at 1M tokens, 36 a rank of eight and 288 on their node, one band
/// of Qwen3-4B 0.469 GiB at 96k.
#[test]
fn host_memory_is_the_layer_inputs() {
    let offload = Toggles { offload: Offload::Host, ..toggles() };
    assert_eq!(plan(&qwen("8B"), offload.clone(), M).host_bytes(), 288 << 30);
    let ring = Toggles { cp: ContextParallel::Ring, ranks: 8, ..offload.clone() };
    let eight = plan(&qwen("8B"), ring, M);
    assert_eq!((eight.host_bytes(), eight.node_bytes()), (36 << 30, 288 << 30));
    let bands = plan(&qwen("4B"), offload, 96 * 1024).host_bytes();
    near("a band", bands as f64 / 36.0 / GIB, 0.469, 0.001);
}

/// failures.md 33: from the second step on the plan is at the same level at every mark.
#[test]
fn planned_memory_is_flat_over_steps() {
    let offload = Toggles { offload: Offload::Host, keep: Keep::Attention, ..toggles() };
    let p = plan(&qwen("0.6B"), offload, 32 * 1024);
    let at_marks = |step| -> Vec<_> {
        let of_step = p.rank.timeline.iter().filter(|s| s.mark.step == step && s.mark.phase != Phase::Load);
        of_step.map(|s| (s.mark.phase, s.mark.layer, s.device)).collect()
    };
    assert!(at_marks(0).len() > 2 * 28);
    assert_eq!(at_marks(0), at_marks(1));
}

/// failures.md 36: a toggle is told by what it takes off the peak, not by what it moves. The
/// peak of the full loss stands in the loss, where every input that was moved is away; that of
/// the chunked one in the last layer's backward, where some are back.
#[test]
fn offload_is_told_by_the_peak() {
    let model = qwen("0.6B");
    for (loss, length) in [(Loss::Full, 32 * 1024), (Loss::Chunked { rows: 256 }, 128 * 1024)] {
        let setting = setting(&model, Toggles { loss, ..toggles() });
        let without = setting.plan(length).unwrap();
        let changes = compare::changes(&setting, &without).unwrap();
        let offload = changes.iter().find(|c| c.what == "offload = \"host\"").unwrap();
        let moved = offload.plan.host_bytes();
        let saved = without.device_bytes() - offload.plan.device_bytes();
        assert_eq!(moved, 28 * length * 1024 * 2);
        assert!(if loss == Loss::Full { saved == moved } else { saved < moved }, "{saved} of {moved}");
        let with = plan(&model, Toggles { loss, offload: Offload::Host, ..toggles() }, length);
        assert_eq!(with.device_bytes() + saved, without.device_bytes());
    }
}

/// failures.md 37: what driver and libraries hold is part of the plan, and every buffer is
/// rounded up as the pool does it.
#[test]
fn driver_and_libraries_count() {
    let model = qwen("0.6B");
    let p = plan(&model, toggles(), 4096);
    assert_eq!(p.rank.device.bytes.of(Category::Fixed), 641 << 20);
    for category in Category::ALL {
        assert!(p.rank.device.bytes.of(category).is_multiple_of(256), "{category:?}");
    }
    // A card that is used up before the first buffer.
    let room = Room { device: Some(512 << 20), host: None };
    let setting = Setting { room, ..setting(&model, toggles()) };
    assert_eq!(setting.longest(1024, M).unwrap(), None);
}

/// failures.md 38: 16M tokens, 512 ranks, a dense model of 235 billion parameters: counted in
/// full, in less than two seconds, in memory that does not grow with the length.
#[test]
fn sixteen_million_tokens_on_512_ranks() {
    let model = ModelConfig {
        name: "invented".to_string(),
        hidden_size: 12_288,
        intermediate_size: 36_864,
        num_hidden_layers: 138,
        num_attention_heads: 96,
        tie_word_embeddings: false,
        ..qwen("32B")
    };
    assert_eq!(model.parameters() / 1_000_000_000, 236);
    let ring = Toggles { cp: ContextParallel::Ring, ranks: 512, offload: Offload::Host, ..toggles() };
    let start = Instant::now();
    let level = allocator::reset_peak();
    let p = plan(&model, ring.clone(), 16 * M);
    let heap = allocator::peak().saturating_sub(level);
    let seconds = start.elapsed().as_secs_f64();
    assert!(seconds < 2.0, "{seconds} s");
    assert!(heap < 64 << 20, "{heap} bytes");
    println!("16M tokens, 512 ranks: {seconds:.3} s, {heap} bytes of heap");
    assert_eq!(p.host_bytes(), 138 * (16 * M / 512) * 12_288 * 2);
    // Beyond 64 bits on the node of all ranks; attention alone is 2·S²·heads·head_dim a layer.
    let forward = 2 * u128::from(16 * M).pow(2) * 96 * 128 * 138;
    assert!(p.hardware_flops() > u128::from(u64::MAX) && model.model_flops(16 * M) > 3 * forward);
    assert_eq!(p.rank.counts.attention_flops * 512, 2 * forward);
    assert_eq!(p.rank.counts.attention_backward_flops * 512, forward / 2 * 5);
    // And all of it on one rank.
    let one = Toggles { tile: 1 << 16, loss: Loss::Chunked { rows: 4096 }, ..toggles() };
    let p = plan(&model, one, 16 * M);
    assert_eq!(most(&p, Category::LayerInputs), (138 * 16 * M * 12_288 * 2) as f64 / GIB);
}

/// The floors that the ceilings' measurements give by hand, within a tenth: Qwen3-4B with
/// attention kept 3.3 s at 32k and 58 s at 160k, Qwen3-8B at 1M on eight 246 s, 304 s where
/// attention is computed again.
#[test]
fn floors_are_those_by_hand() {
    let ceilings = Ceilings::built_in().unwrap();
    let h200 = ceilings.iter().find(|c| c.name == "H200").unwrap();
    let kept = Toggles { keep: Keep::Attention, ..toggles() };
    let eight = |keep| Toggles { keep, cp: ContextParallel::Ring, ranks: 8, ..toggles() };
    for (model, toggles, length, by_hand) in [
        ("4B", kept.clone(), 32 * 1024, 3.3),
        ("4B", kept, 160 * 1024, 58.0),
        ("8B", eight(Keep::Attention), M, 246.0),
        ("8B", eight(Keep::Inputs), M, 304.0),
    ] {
        let floor = h200.floor(&plan(&qwen(model), toggles, length)).step();
        near(model, floor, by_hand, by_hand / 10.0);
    }
}

fn guide() -> Experiment {
    Experiment::load("guide").unwrap()
}

fn rung_setting<'a>(e: &'a Experiment, rung: &Rung) -> Setting<'a> {
    let room = Room { device: e.budget, host: None };
    Setting { profile: e.device.profile(), model: &e.model, toggles: rung.toggles.clone(), auto: rung.auto, room }
}

/// The guide's ladder on 80 GiB with its own choices. It says 32k, 160k, 160k, 256k, and 1M
/// on four cards at 63.6 GiB.
///
/// Plain ends 9 % below: here the moments, which exist from the second step on, and driver and
/// libraries count. Chunked ends 6 % above and holds 59.2 GiB at 96k, where the guide has 59.9.
/// Offload goes 64 % further: one layer's backward holds three tensors of the MLP's width and
/// not their gradients beside them, and three layer inputs are on the device, not four. For the
/// same reasons four ranks hold 39 GiB at 1M, not 63.6.
#[test]
fn the_guides_ladder_is_near_the_guides() {
    let e = guide();
    let mut ratios = Vec::new();
    for (rung, theirs) in e.rungs.iter().zip([32, 160, 160, 256, 1024]) {
        let longest = rung_setting(&e, rung).longest(rung.grid, rung.stop_at.unwrap_or(16 * M)).unwrap().unwrap();
        println!("{}: {longest} tokens, {:.2} of the guide's", rung.name, longest as f64 / (theirs * 1024) as f64);
        ratios.push(longest as f64 / (theirs * 1024) as f64);
    }
    for (ratio, (low, high)) in ratios.iter().zip([(0.88, 1.0), (1.0, 1.12), (1.0, 1.12), (1.55, 1.75), (1.0, 1.0)]) {
        assert!((low..=high).contains(ratio), "{ratios:?}");
    }
    let peak = |rung: usize, length| rung_setting(&e, &e.rungs[rung]).plan(length).unwrap().device_bytes() as f64 / GIB;
    near("chunked at 96k", peak(1, 96 * 1024), 59.9, 1.5);
    near("offload at 96k", peak(3, 96 * 1024), 48.8, 6.0);
    assert!(peak(4, M) < 63.6);
}

/// The plan's own choice fits, keeps more where there is room, and never takes more time than
/// keeping inputs alone.
#[test]
fn what_is_chosen_fits_and_buys_time() {
    let model = qwen("8B");
    let ring = Toggles { cp: ContextParallel::Ring, ranks: 8, ..toggles() };
    let auto = Auto { keep: true, offload: true, every: true };
    let flops = |p: &Plan| p.rank.counts.flops();
    let mut before = u128::MAX;
    for host in [64u64, 256, 400, 2048] {
        let room = Room { device: Some(80 << 30), host: Some(host << 30) };
        let setting = Setting { auto, room, ..setting(&model, ring.clone()) };
        let p = setting.plan(M).unwrap();
        assert!(p.over().none(), "{host} GiB of host memory: {}", p.verdict());
        p.toggles.validate(&model).unwrap();
        assert!(flops(&p) <= before, "more host memory, more FLOPs");
        before = flops(&p);
    }
    // With room for all, attention is never computed again.
    let once = plan(&model, Toggles { keep: Keep::Attention, ..ring.clone() }, M);
    assert_eq!(before, flops(&once));
    // On a card that is too small for all inputs, they go to host memory, as many as must.
    let room = Room { device: Some(40 << 30), host: Some(2048 << 30) };
    let p = Setting { auto, room, ..setting(&model, ring) }.plan(M).unwrap();
    assert!(p.over().none() && p.toggles.offload.layers().0 > 0, "{:?}", p.toggles);
}

/// What doesn't fit is told with the toggle that brings it nearest, found by trying each.
#[test]
fn the_most_helpful_toggle_is_the_best_of_all() {
    let e = guide();
    let setting = rung_setting(&e, &e.rungs[0]);
    let p = setting.plan(64 * 1024).unwrap();
    assert!(p.over().device > 0 && p.verdict().starts_with("does not fit"), "{}", p.verdict());
    let changes = compare::changes(&setting, &p).unwrap();
    let best = compare::most_helpful(&p, &changes).unwrap();
    assert_eq!(best.what, "loss = \"chunked\"");
    let here = changes.iter().filter(|c| !c.more_ranks);
    assert!(here.clone().count() > 5 && here.clone().all(|c| c.plan.device_bytes() >= best.plan.device_bytes()));
}
