//! The report: figures and a page, from records alone.

mod document;
pub mod figure;
mod guide;
mod html;
mod ladder;
mod markdown;
mod page;
mod study;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use document::Block;
use figure::Figure;
pub use study::by_position;

use crate::columns::columns;
use crate::files::write_whole;
use crate::record::Records;
use crate::record::losses::LOSSES;
use crate::record::parquet::FILES;

/// What was rendered.
pub struct Report {
    /// The finding for a terminal: a row a rung, and where the page is.
    pub summary: String,
    /// The page.
    pub page: PathBuf,
}

/// Renders a folder's figures and page from its Parquet files.
pub fn render(dir: &Path) -> Result<Report> {
    if dir.join(LOSSES).is_file() && !dir.join(FILES[2]).is_file() {
        return study::render(dir);
    }
    let records = Records::read(dir)?;
    let figures = figure::all(&records)?;
    let ladder = ladder::Ladder::of(&records);
    let blocks = page::blocks(&records, &ladder, &figures);
    let page = write_pages(dir, &page::title(&records), &blocks, &figures)?;
    Ok(Report { summary: summary(&ladder, &page), page })
}

/// Writes a page as Markdown and HTML, and its figures; where the HTML page is.
fn write_pages(dir: &Path, title: &str, blocks: &[Block], figures: &[Figure]) -> Result<PathBuf> {
    let folder = dir.join("figures");
    std::fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    let write = |path: PathBuf, bytes: &[u8]| write_whole(&path, |file| Ok(file.write_all(bytes)?));
    for figure in figures {
        write(folder.join(format!("{}.svg", figure.name)), figure.svg.as_bytes())?;
        write(folder.join(format!("{}.png", figure.name)), &figure.png)?;
    }
    let by_name: HashMap<&str, &str> = figures.iter().map(|f| (f.name.as_str(), f.svg.as_str())).collect();
    let page = dir.join("report.html");
    write(dir.join("report.md"), markdown::render(blocks).as_bytes())?;
    write(page.clone(), html::render(title, blocks, &by_name).as_bytes())?;
    Ok(page)
}

/// The finding for a terminal.
fn summary(ladder: &ladder::Ladder, page: &Path) -> String {
    let ratio_head = ladder.ratio_head();
    let head = ["rung", "tokens", &ratio_head, "peak a rank", "room left", "loss", "s/step"].map(String::from).to_vec();
    let mut rows = vec![head];
    for rung in &ladder.rungs {
        rows.push(vec![
            rung.name.to_string(),
            rung.tokens(),
            rung.ratio(ladder.base()),
            rung.peak(),
            rung.room(),
            rung.loss(),
            rung.step_seconds().map_or(String::new(), |s| format!("{s:.2}")),
        ]);
    }
    let mut out = columns(&rows);
    out.push_str(&format!("\n{}\n\nThe page: {}", ladder::finding(ladder), page.display()));
    out
}
