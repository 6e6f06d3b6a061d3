//! Compares the records of two folders: losses, gradient norms, losses by position and
//! the ledger's bytes must be the same to the bit; times and provenance may differ.
//!
//!     cargo run --release --example same_records DIR DIR

use std::path::Path;
use std::process::ExitCode;

use ablation::record::Records;

fn main() -> anyhow::Result<ExitCode> {
    let dirs: Vec<String> = std::env::args().skip(1).collect();
    let [a, b] = dirs.as_slice() else { anyhow::bail!("give two folders of records") };
    let (a, b) = (Records::read(Path::new(a))?.comparable(), Records::read(Path::new(b))?.comparable());
    let mut different = usize::from(a.runs.len() != b.runs.len());
    for (x, y) in a.runs.iter().zip(&b.runs).filter(|(x, y)| x != y) {
        different += 1;
        println!("run {}:\n  {x:?}\n  {y:?}", x.run);
    }
    for (file, same) in [("timeline", a.timeline == b.timeline), ("positions", a.positions == b.positions)] {
        if !same {
            different += 1;
            println!("{file} differs");
        }
    }
    println!("{} and {} runs, {different} differences", a.runs.len(), b.runs.len());
    Ok(if different == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
