//! The `ablation` program: see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(ablation::cli::main())
}
