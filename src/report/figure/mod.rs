//! The figures: each from the rows alone, with a finding as its title.

mod axes;
mod canvas;
mod categories;
mod ends;
#[cfg(test)]
pub(super) mod fixture;
mod ladder;
mod legend;
pub(super) mod losses;
mod positions;
mod predicted;
pub(super) mod rows;
mod step_time;
#[cfg(test)]
mod tests;
mod timeline;

use anyhow::Result;

use crate::record::Records;

/// A drawn figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Stem of its file names.
    pub name: String,
    /// What it shows: the finding, with its numbers.
    pub title: String,
    /// As SVG without fonts: the text is paths.
    pub svg: String,
    /// As PNG, two pixels a pixel, on white.
    pub png: Vec<u8>,
}

type Draw = fn(&Records) -> Result<Option<Figure>>;

/// All figures for which there are rows, in the order in which they are best read.
pub fn all(records: &Records) -> Result<Vec<Figure>> {
    let figures: [Draw; 6] =
        [ladder::draw, categories::draw, timeline::draw, step_time::draw, positions::draw, predicted::draw];
    figures.iter().filter_map(|draw| draw(records).transpose()).collect()
}
