use ablation::ladder::experiment::Experiment;
use ablation::memory::category::Category;
fn main() {
    let e = Experiment::load(&std::env::args().nth(1).unwrap_or("small".into())).unwrap();
    let mut first = 0.0;
    for r in &e.rungs {
        let n = ablation::plan::longest(&e.model, &r.toggles, e.budget.unwrap(), r.grid, r.stop_at).unwrap_or(0);
        if first == 0.0 {
            first = n as f64
        }
        let p = ablation::train::world::plan(&e.model, &r.toggles, None, n.max(64) as usize).0;
        let cats: Vec<String> = Category::ALL
            .iter()
            .filter(|c| p.device.bytes.of(**c) > 0)
            .map(|c| format!("{} {:.2}", c.key(), p.device.bytes.of(*c) as f64 / 1048576.0))
            .collect();
        println!(
            "{:8} {n:6} {:5.2}x peak {:.2} MiB at {:?} {:?}: {} | host {:.2} | {:.1} GFLOP",
            r.name,
            n as f64 / first,
            p.device.bytes.total() as f64 / 1048576.0,
            p.device.mark.phase,
            p.device.mark.layer,
            cats.join(", "),
            p.host.bytes.total() as f64 / 1048576.0,
            p.counts.flops as f64 / 1e9
        );
    }
}
