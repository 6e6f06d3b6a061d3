//! Compares the records of two folders: losses, gradient norms, losses by position and
//! the ledger's bytes must be the same to the bit; times and provenance may differ.
//!
//!     cargo run --release --example same_records DIR DIR

use std::path::Path;
use std::process::ExitCode;

use ablation::record::Records;
use ablation::record::run::Run;

/// What must be the same of a run, as bits.
fn essence(run: &Run) -> String {
    let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    format!(
        "{} {} {} {:?} loss {:?} norm {:?} device {:?} host {:?} peak {} {}",
        run.rung,
        run.purpose,
        run.length_tokens,
        run.status,
        bits(&run.loss),
        bits(&run.gradient_norm),
        run.at_peak_device,
        run.at_peak_host,
        run.peak_device_bytes,
        run.reason,
    )
}

fn main() -> anyhow::Result<ExitCode> {
    let dirs: Vec<String> = std::env::args().skip(1).collect();
    let [a, b] = dirs.as_slice() else { anyhow::bail!("give two folders of records") };
    let (a, b) = (Records::read(Path::new(a))?, Records::read(Path::new(b))?);
    let mut different = usize::from(a.runs.len() != b.runs.len()) + usize::from(a.positions != b.positions);
    for (x, y) in a.runs.iter().zip(&b.runs) {
        if essence(x) != essence(y) {
            different += 1;
            println!("run {}:\n  {}\n  {}", x.run, essence(x), essence(y));
        }
    }
    println!("{} and {} runs, {different} differences", a.runs.len(), b.runs.len());
    Ok(if different == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
