//! What this machine has for training, and what is missing for what.

pub mod gpus;
pub mod libraries;

use serde::Serialize;

use crate::ladder::machine::{cores, cpu_name, version};
use crate::memory::host::HostMemory;
use gpus::Gpu;
use libraries::{DRIVER, Found, LIBRARIES};

/// The machine, as far as training asks for it.
#[derive(Debug, Serialize)]
pub struct Examination {
    pub program: &'static str,
    pub cpu: String,
    /// Cores that this process may use.
    pub cores: u32,
    /// Memory of the machine, bytes.
    pub memory_bytes: Option<u64>,
    /// Memory that is free or can be freed now, bytes.
    pub memory_available_bytes: Option<u64>,
    /// What the process's control group may have, where that is less, bytes.
    pub cgroup_limit_bytes: Option<u64>,
    /// RLIMIT_MEMLOCK, bytes; none: unlimited.
    pub locked_memory_limit_bytes: Option<u64>,
    /// The kernel's part of NVIDIA's driver.
    pub kernel_driver: Option<String>,
    pub gpus: Vec<Gpu>,
    /// Why no GPU could be asked for.
    pub gpu_problem: Option<String>,
    /// The driver's library, then those of the CUDA toolkit.
    pub libraries: Vec<Found>,
    pub abilities: Vec<Ability>,
}

/// Something that a user may want to do.
#[derive(Debug, Serialize)]
pub struct Ability {
    pub what: &'static str,
    pub possible: bool,
    /// What is missing, and how to get it.
    pub missing: Vec<String>,
}

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  …" → 580.65.06
fn kernel_driver(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.lines().next()?.split_whitespace().find(is_version).map(str::to_string)
}

/// RLIMIT_MEMLOCK; none: unlimited, or not known.
fn locked_memory_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit fills the struct, or fails.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    (status == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Examines this machine.
pub fn examine() -> Examination {
    let memory = HostMemory::here();
    let (driver, handle) = DRIVER.find();
    let (gpus, gpu_problem) = match handle.as_ref().map(gpus::all) {
        Some(Ok(gpus)) => (gpus, None),
        Some(Err(problem)) => (Vec::new(), Some(problem)),
        None => (Vec::new(), Some("NVIDIA's driver was not found".to_string())),
    };
    let mut libraries = vec![driver];
    // Their handles close again: nothing here computes with them.
    libraries.extend(LIBRARIES.iter().map(|wanted| wanted.find().0));
    let abilities = abilities(&libraries, gpus.len(), gpu_problem.as_deref());
    Examination {
        program: version(),
        cpu: cpu_name(),
        cores: cores(),
        memory_bytes: memory.map(|m| m.total),
        memory_available_bytes: memory.map(|m| m.available),
        cgroup_limit_bytes: memory.and_then(|m| m.cgroup),
        locked_memory_limit_bytes: locked_memory_limit(),
        kernel_driver: std::fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|t| kernel_driver(&t)),
        gpus,
        gpu_problem,
        libraries,
        abilities,
    }
}

/// What can be done with the libraries and GPUs found.
fn abilities(libraries: &[Found], gpus: usize, gpu_problem: Option<&str>) -> Vec<Ability> {
    let wanted = std::iter::once(&DRIVER).chain(&LIBRARIES);
    let lacks = |(found, wanted): &(&Found, &libraries::Wanted)| found.path.is_none() && wanted.name != "NCCL";
    let mut missing: Vec<String> = libraries
        .iter()
        .zip(wanted)
        .filter(lacks)
        .map(|(found, wanted)| match &found.problem {
            Some(problem) => format!("{}: {problem}; {}", wanted.name, wanted.get),
            None => format!("{}: {}", wanted.name, wanted.get),
        })
        .collect();
    let has_driver = libraries.first().is_some_and(|driver| driver.path.is_some());
    if let Some(problem) = gpu_problem.filter(|_| has_driver) {
        missing.push(format!("a GPU: {problem}"));
    }
    let mut between = Vec::new();
    if !missing.is_empty() {
        between.push("what one GPU needs".to_string());
    }
    if libraries.iter().any(|l| l.name == "NCCL" && l.path.is_none()) {
        between.push(format!("NCCL: {}", LIBRARIES[3].get));
    }
    if gpus == 1 {
        between.push("a second GPU".to_string());
    }
    let ability = |what, missing: Vec<String>| Ability { what, possible: missing.is_empty(), missing };
    vec![
        ability("ladders on the CPU", Vec::new()),
        ability("what one GPU needs", missing),
        ability("what several GPUs need", between),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_drivers_version_is_found_in_its_text() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:07:42 UTC 2025\nGCC version: 12.3.0\n";
        assert_eq!(kernel_driver(text).as_deref(), Some("580.65.06"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n";
        assert_eq!(kernel_driver(open).as_deref(), Some("570.124.06"));
        assert_eq!(kernel_driver(""), None);
    }

    #[test]
    fn what_is_missing_is_named_with_how_to_get_it() {
        let found =
            |name, there: bool| Found { name, path: there.then(|| "/lib/x.so".into()), version: None, problem: None };
        let all = |there: [bool; 5]| {
            let names = ["driver", "NVRTC", "cuBLASLt", "cuDNN", "NCCL"];
            names.into_iter().zip(there).map(|(n, t)| found(n, t)).collect::<Vec<_>>()
        };
        let possible = |abilities: &[Ability]| abilities.iter().map(|a| a.possible).collect::<Vec<_>>();
        assert_eq!(possible(&abilities(&all([true; 5]), 8, None)), [true, true, true]);
        assert_eq!(possible(&abilities(&all([true; 5]), 1, None)), [true, true, false]);
        let without = abilities(&all([true, true, true, false, false]), 1, None);
        assert_eq!(possible(&without), [true, false, false]);
        assert!(without[1].missing[0].contains("cuDNN") && without[1].missing[0].contains("pip install"));
        assert_eq!(without[1].missing.len(), 1);
        assert_eq!(
            without[2].missing.len(),
            3,
            "cuDNN through one GPU's, NCCL, a second GPU: {:?}",
            without[2].missing
        );
        let hidden = abilities(&all([true; 5]), 0, Some("the driver shows no GPU"));
        assert!(hidden[1].missing[0].contains("shows no GPU"));
        // Without a driver its absence is said once.
        assert_eq!(abilities(&all([false, true, true, true, true]), 0, Some("not found"))[1].missing.len(), 1);
    }
}
