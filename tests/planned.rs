//! The plan against the ledger and the allocator, for every rung of the small ladder. Alone in
//! its file: the allocator counts the whole process.

mod common;

use ablation::ladder::attempt::{Purpose, attempts};
use ablation::ladder::experiment::Experiment;
use ablation::memory::allocator;
use ablation::model::init::SeededWeights;
use ablation::train::step::Optimizer;
use ablation::train::world::{Job, Row, plan, run};

/// failures.md 32, 37: what is held is what was planned, by category and to the byte, on the
/// device and in host memory, and what the heap measured beside it is within 2 %.
#[test]
fn every_rung_of_small_holds_what_is_planned() {
    let e = Experiment::load("small").unwrap();
    let all = attempts(&e, 1 << 22).unwrap();
    ablation::device::cpu::kernels::warm_up();
    for rung in &e.rungs {
        let longest = all.iter().find(|a| a.rung.name == rung.name && a.purpose == Purpose::Longest).unwrap().length;
        let length = (longest / 2).next_multiple_of(rung.grid) as usize;
        let rows = [Row { ids: (0..length).map(|i| (i * 7 % 2048) as u32).collect(), labels: None }];
        let optimizer = Optimizer { learning_rate: 1e-3, steps: 2, max_gradient_norm: 1.0, seed: 1 };
        let source = SeededWeights { seed: 1 };
        let (config, toggles) = (&e.model, &rung.toggles);
        let job = Job { config, toggles, optimizer, budget: e.budget, rows: &rows, source: &source };
        let (planned, result) = plan(config, toggles, None, length);
        result.unwrap();
        let level = allocator::reset_peak();
        let outcome = run(&job, &Default::default(), &|_, _| {});
        let measured = allocator::peak().saturating_sub(level) as f64;
        assert!(outcome.error.is_none(), "{}: {:?}", rung.name, outcome.error);
        let last = outcome.ranks.last().unwrap();
        assert_eq!((last.device, last.host.bytes), (planned.device, planned.host.bytes), "{}", rung.name);
        assert_eq!(last.counts, planned.counts, "{}", rung.name);
        let off = measured / outcome.process_peak as f64 - 1.0;
        println!("{} at {length} tokens: the allocator is {:+.2} % off the ledger", rung.name, off * 100.0);
        assert!(off.abs() <= 0.02, "{}: the allocator is {off} off", rung.name);
    }
}
