//! The report: figures and a page, from records alone.

use std::path::Path;

use anyhow::Result;

use crate::record::Records;

/// What was rendered.
pub struct Report {
    /// The finding for a terminal.
    pub summary: String,
}

/// Renders a folder's figures and page from its Parquet files.
pub fn render(dir: &Path) -> Result<Report> {
    let records = Records::read(dir)?;
    Ok(Report { summary: format!("{} runs", records.runs.len()) })
}
