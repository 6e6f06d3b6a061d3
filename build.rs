//! Tells the program which revision it was built from.

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

fn main() {
    // A package manager that builds without .git gives the revision itself.
    println!("cargo:rerun-if-env-changed=ABLATION_REVISION");
    for path in [".git/HEAD", ".git/index", "src", "experiments", "Cargo.lock"] {
        if std::path::Path::new(path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let revision = std::env::var("ABLATION_REVISION").ok().or_else(|| {
        let revision = git(&["rev-parse", "HEAD"])?;
        let dirty = git(&["status", "--porcelain", "--untracked-files=no"])?;
        Some(if dirty.is_empty() { revision } else { format!("{revision}-dirty") })
    });
    println!("cargo:rustc-env=ABLATION_REVISION={}", revision.unwrap_or_else(|| "unknown".to_string()));
}
