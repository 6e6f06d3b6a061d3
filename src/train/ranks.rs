//! Threads of this process, one a rank, each with a device and a ledger of its own.

use std::sync::Arc;

use anyhow::{Error, Result, anyhow};

use crate::device::Stopped;
use crate::device::cpu::{Cpu, CpuShared};
use crate::memory::ledger::ProcessTotal;
use crate::parallel::local::{LocalComm, World};

/// A CPU rank's end of its world.
pub type CpuComm = LocalComm<CpuShared>;

/// What the ranks left.
pub struct Left<R> {
    /// What each rank's work and report gave, in the order of ranks.
    pub results: Vec<R>,
    /// All ranks together, device and host, bytes.
    pub process_peak: u64,
    /// What they still hold after all have ended, bytes: 0 unless something leaks.
    pub left_bytes: u64,
    /// The first cause: not that of a rank that stopped for another one.
    pub error: Option<Error>,
}

/// Runs `work` on every rank of a world of CPU threads; `report` reads a rank's device
/// after its work, however that ended. When one fails or panics, all stop.
pub fn on_ranks<S: Send, R: Send>(
    ranks: usize,
    budget: Option<u64>,
    work: &(dyn Fn(&Cpu, &CpuComm, &mut S) -> Result<()> + Sync),
    start: &(dyn Fn() -> S + Sync),
    report: &(dyn Fn(&Cpu, S) -> R + Sync),
) -> Left<R> {
    let process = Arc::new(ProcessTotal::default());
    let world = World::new(ranks);
    let mut error: Option<Error> = None;
    let mut results = Vec::with_capacity(ranks);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (world, process) = (world.clone(), process.clone());
                scope.spawn(move || {
                    let device = Cpu::new(budget, process);
                    let mut state = start();
                    let guarded = std::panic::AssertUnwindSafe(|| work(&device, &world.comm(rank), &mut state));
                    let error = match std::panic::catch_unwind(guarded) {
                        Ok(result) => result.err(),
                        Err(panic) => Some(anyhow!("rank {rank} panicked: {}", message(&panic))),
                    };
                    if error.is_some() {
                        // Before the device goes, so that no lane waits for a peer.
                        world.stop();
                    }
                    (report(&device, state), error)
                })
            })
            .collect();
        for thread in threads {
            let own = match thread.join() {
                Ok((result, own)) => {
                    results.push(result);
                    own
                }
                Err(panic) => Some(anyhow!("a rank's thread was lost: {}", message(&panic))),
            };
            error = match (error.take(), own) {
                (Some(first), Some(next)) if first.is::<Stopped>() => Some(next),
                (first, next) => first.or(next),
            };
        }
    });
    Left { results, process_peak: process.peak(), left_bytes: process.current(), error }
}

fn message(panic: &Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_else(|| "no message".to_string())
}
