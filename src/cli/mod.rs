//! The command line, one file a command.

mod common;
mod doctor;
mod fetch;
mod loss;
mod plan;
mod plan_text;
mod report;
mod rows;
mod run;
mod study;
mod toggles;
mod train;
mod verify;

use std::io::Write;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::error::BadInput;

/// Trains Qwen3 models on very long sequences, one technique at a time, and shows
/// what each costs.
///
/// Without a command it runs the built-in ladder `small`: a few minutes on two cores.
#[derive(Debug, Parser)]
#[command(version = crate::ladder::machine::version(), about, long_about, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

const EXIT_CODES: &str = "Exit status: 0 done (runs that were expected not to fit included), \
                          1 a run failed or a check is broken, 2 bad input, 130 ended by Ctrl-C.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Plan(plan::Plan),
    Report(report::Report),
    Verify(verify::Verify),
    Doctor(doctor::Doctor),
    Loss(loss::Loss),
    Train(Box<train::Train>),
    Fetch(fetch::Fetch),
}

/// Prints a line; a reader that has gone away is no error, a full disk is.
fn say(text: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Runs the program; returns its exit status.
pub fn main() -> u8 {
    crate::guard::silence_guarded_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // --help and --version come this way, too.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let result = match cli.command.unwrap_or_else(|| Command::Run(run::Run::default())) {
        Command::Run(command) => run::run(&command),
        Command::Plan(command) => plan::plan(&command),
        Command::Report(command) => report::report(&command),
        Command::Train(command) => train::train(&command),
        Command::Loss(command) => loss::loss(&command),
        Command::Fetch(command) => fetch::fetch(&command),
        Command::Doctor(command) => doctor::doctor(&command),
        Command::Verify(command) => verify::verify(&command),
    };
    match result {
        Ok(status) => status,
        Err(error) => {
            crate::notice(&format!("error: {error:#}"));
            if error.is::<BadInput>() { 2 } else { 1 }
        }
    }
}
