//! `ablation report`: renders a folder again from its Parquet files.

use std::path::PathBuf;

use anyhow::Result;

/// Render the figures and the page of a folder again, from its Parquet files alone
#[derive(Debug, clap::Args)]
pub struct Report {
    /// The folder that `ablation run` wrote
    dir: PathBuf,
}

/// Runs the command.
pub fn report(command: &Report) -> Result<u8> {
    let report = crate::report::render(&command.dir)?;
    super::say(&report.summary)?;
    Ok(0)
}
