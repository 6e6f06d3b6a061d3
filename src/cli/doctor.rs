//! `ablation doctor`: what this machine has, and what is missing for what.

use anyhow::Result;

use crate::doctor::{Examination, examine};
use crate::units::format_bytes;

/// Say what this machine has for training, what is missing for what, and how to get it
#[derive(Debug, clap::Args)]
pub struct Doctor {
    /// Print one JSON object in place of the text
    #[arg(long)]
    json: bool,
}

fn row(text: &mut String, name: &str, value: &str) {
    text.push_str(&format!("{name:<26}{value}\n"));
}

fn memory(e: &Examination) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("not known".to_string(), format_bytes);
    let limit = match e.cgroup_limit_bytes {
        Some(limit) => format!("this process may have {} (control group)", format_bytes(limit)),
        None => "no control group limits it".to_string(),
    };
    format!("{}, {} available now; {limit}", known(e.memory_bytes), known(e.memory_available_bytes))
}

/// A GPU's driver pins memory itself; the limit counts for all other programs' mlock.
fn pinned(e: &Examination) -> String {
    let most = e.cgroup_limit_bytes.or(e.memory_bytes);
    let most = most.map_or("not known".to_string(), |m| format!("up to {}", format_bytes(m)));
    let locked = e.locked_memory_limit_bytes.map_or("unlimited".to_string(), format_bytes);
    format!("{most}, less what else is in memory; mlock (ulimit -l): {locked}")
}

fn text(e: &Examination) -> String {
    let mut text = String::new();
    row(&mut text, "program", e.program);
    row(&mut text, "CPU", &format!("{}, {} cores", e.cpu, e.cores));
    row(&mut text, "memory", &memory(e));
    row(&mut text, "pinned memory", &pinned(e));
    for (i, gpu) in e.gpus.iter().enumerate() {
        let value = format!("{}, {}, capability {}", gpu.name, format_bytes(gpu.memory_bytes), gpu.capability);
        row(&mut text, &format!("GPU {i}"), &value);
    }
    if let Some(problem) = &e.gpu_problem {
        row(&mut text, "GPUs", &format!("none: {problem}"));
    }
    if let Some(driver) = &e.kernel_driver {
        row(&mut text, "kernel driver", driver);
    }
    for library in &e.libraries {
        let value = match (&library.path, &library.problem) {
            (Some(path), _) => {
                format!("{}, {}", library.version.as_deref().unwrap_or("version not told"), path.display())
            }
            (None, Some(problem)) => format!("not usable: {problem}"),
            (None, None) => "not found".to_string(),
        };
        row(&mut text, library.name, &value);
    }
    text.push('\n');
    for ability in &e.abilities {
        row(&mut text, ability.what, if ability.possible { "all there" } else { "missing:" });
        for missing in &ability.missing {
            text.push_str(&format!("  {missing}\n"));
        }
    }
    text.push_str("\nThis version computes on the CPU: GPUs and their libraries are shown, not used.");
    text
}

/// Runs the command.
pub fn doctor(command: &Doctor) -> Result<u8> {
    let e = examine();
    super::say(&if command.json { serde_json::to_string_pretty(&e)? } else { text(&e) })?;
    Ok(0)
}
