//! What ran the program: recorded with every run.

use std::sync::LazyLock;

/// The machine and the program.
#[derive(Debug, Clone)]
pub struct Machine {
    pub host_name: String,
    pub cpu: String,
    pub cores: u32,
    pub program_version: &'static str,
    pub git_revision: &'static str,
    /// SHA-256 of the program's file, in hex.
    pub program_sha256: Option<String>,
    /// Where the program stands in a Nix store, if it does.
    pub store_path: Option<String>,
}

fn first_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.lines().next()?.trim().to_string())
}

/// The processor's name, or else its architecture.
pub fn cpu_name() -> String {
    let name = || {
        let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
        let line = info.lines().find(|l| l.starts_with("model name") || l.starts_with("Processor"))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    name().unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// Cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u32)
}

/// The package's path in the Nix store: the fourth part of "/nix/store/HASH-NAME/bin/…".
fn store_path() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let program = program.to_str()?;
    let package = program.strip_prefix("/nix/store/")?.split('/').next()?;
    Some(format!("/nix/store/{package}"))
}

fn program_sha256() -> Option<String> {
    crate::hash::sha256_of_file(&std::env::current_exe().ok()?).ok()
}

/// Version, revision and, under Nix, store path: what `--version` prints.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let program = concat!(env!("CARGO_PKG_VERSION"), " (", env!("ABLATION_REVISION"), ")");
        store_path().map_or(program.to_string(), |path| format!("{program} {path}"))
    });
    &VERSION
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        Machine {
            host_name: first_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "unknown".to_string()),
            cpu: cpu_name(),
            cores: cores(),
            program_version: env!("CARGO_PKG_VERSION"),
            git_revision: env!("ABLATION_REVISION"),
            program_sha256: program_sha256(),
            store_path: store_path(),
        }
    }
}
