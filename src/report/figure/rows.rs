//! The rows of a folder by rung, with the colours and marks that all figures share.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::canvas::Canvas;
use crate::memory::category::Category;
use crate::record::Records;
use crate::record::run::{Run, Status};

/// Okabe and Ito's palette without its yellow, which is too light on white.
const COLOURS: [RGBColor; 7] = [
    RGBColor(40, 40, 40),
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(176, 83, 139),
    RGBColor(200, 130, 0),
    RGBColor(60, 150, 205),
];

/// The colour of the line with this number.
pub fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

/// One rung and its attempts.
pub struct Rung<'a> {
    pub name: &'a str,
    /// Its place in the ladder, from 0.
    pub index: usize,
    /// All attempts, in the order in which they ran.
    pub runs: Vec<&'a Run>,
}

/// A rung as the experiment file in a row has it.
pub struct FileRung {
    pub name: String,
    /// What it adds, in a line.
    pub adds: String,
    /// The length at which the experiment ends it, tokens.
    pub stop_at: Option<u64>,
}

/// The rungs of an experiment file; none where it can't be read.
pub fn rungs_of_file(toml: &str) -> Vec<FileRung> {
    let Ok(file) = toml.parse::<toml::Table>() else { return Vec::new() };
    let text = |rung: &toml::Value, key| rung.get(key).and_then(toml::Value::as_str).map(str::to_string);
    let tokens = |stop: &toml::Value| match stop {
        toml::Value::Integer(tokens) => u64::try_from(*tokens).ok(),
        toml::Value::String(text) => crate::units::parse_tokens(text).ok(),
        _ => None,
    };
    let rung = |r: &toml::Value| {
        let (adds, stop_at) = (text(r, "adds").unwrap_or_default(), r.get("stop_at").and_then(tokens));
        Some(FileRung { name: text(r, "name")?, adds, stop_at })
    };
    file.get("rung").and_then(toml::Value::as_array).into_iter().flatten().filter_map(rung).collect()
}

/// The rungs in the order of their first attempts.
pub fn rungs(records: &Records) -> Vec<Rung<'_>> {
    let mut rungs: Vec<Rung> = Vec::new();
    for run in &records.runs {
        match rungs.iter_mut().find(|r| r.name == run.rung) {
            Some(rung) => rung.runs.push(run),
            None => rungs.push(Rung { name: &run.rung, index: rungs.len(), runs: vec![run] }),
        }
    }
    rungs
}

impl<'a> Rung<'a> {
    /// The attempts that ended well, by length, the last at each length.
    pub fn curve(&self) -> Vec<&'a Run> {
        let mut runs: Vec<&Run> =
            self.runs.iter().rev().copied().filter(|r| r.status == Status::Ok && r.length_tokens > 0).collect();
        runs.sort_by_key(|r| r.length_tokens);
        runs.dedup_by_key(|r| r.length_tokens);
        runs
    }

    /// The longest attempt that ended well.
    pub fn longest(&self) -> Option<&'a Run> {
        let longest = |r: &&&Run| r.status == Status::Ok && r.purpose == "longest";
        let named = self.runs.iter().filter(longest).max_by_key(|r| r.length_tokens);
        named.copied().or_else(|| self.curve().last().copied())
    }

    /// The last attempt at the length after the longest.
    pub fn beyond(&self) -> Option<&'a Run> {
        self.runs.iter().rev().find(|r| r.purpose == "beyond").copied()
    }

    /// Whether the experiment ends this rung at its longest length, whatever the memory would allow.
    pub fn stops_by_design(&self) -> bool {
        let Some(longest) = self.longest().filter(|_| self.beyond().is_none()) else { return false };
        let file = rungs_of_file(&longest.experiment_toml);
        file.iter().any(|r| r.name == self.name && r.stop_at == Some(longest.length_tokens))
    }

    /// Its colour in all figures.
    pub fn colour(&self) -> RGBColor {
        colour(self.index)
    }

    /// Its mark in all figures, at a point.
    pub fn mark(&self, canvas: &Canvas, (x, y): (f64, f64)) -> Result<()> {
        let colour = self.colour().to_rgba();
        match self.index % 6 {
            0 => canvas.rect((x - 5.0, y - 5.0), (x + 5.0, y + 5.0), colour),
            1 => canvas.circle((x, y), 6.5, colour),
            2 => canvas.polygon(&[(x, y - 5.5), (x + 5.0, y + 4.0), (x - 5.0, y + 4.0)], colour),
            3 => canvas.polygon(&[(x, y - 7.0), (x + 6.0, y), (x, y + 7.0), (x - 6.0, y)], colour),
            4 => canvas.polygon(&[(x, y + 7.0), (x + 6.5, y - 4.5), (x - 6.5, y - 4.5)], colour),
            _ => canvas.circle((x, y), 4.0, colour),
        }
    }

    /// Its line through points: dashed for every second of a pair that lies on each other.
    pub fn line(&self, canvas: &Canvas, points: &[(f64, f64)]) -> Result<()> {
        let colour = self.colour().to_rgba();
        match self.index % 6 {
            2 => canvas.dashed(points, 2.5, colour, 9.0, 6.0),
            5 => canvas.dashed(points, 2.5, colour, 4.0, 4.0),
            _ => canvas.line(points, 2.5, colour),
        }
    }
}

/// Bytes on an axis: the size of the unit and its name, by the largest value.
pub fn byte_unit(largest: u64) -> (f64, &'static str) {
    match largest {
        l if l >= 2 << 30 => (f64::from(1u32 << 30), "GiB"),
        l if l >= 1 << 20 => (f64::from(1u32 << 20), "MiB"),
        _ => (1024.0, "KiB"),
    }
}

/// The colour of a category in stacks: hues by kind (state blue, gathered purple, kept green, passing warm).
pub fn category_colour(category: Category) -> RGBColor {
    match category {
        Category::Fixed => RGBColor(110, 105, 100),
        Category::Weights => RGBColor(0, 68, 120),
        Category::Gradients => RGBColor(30, 120, 185),
        Category::Moments => RGBColor(120, 185, 228),
        Category::GatheredWeights => RGBColor(115, 70, 140),
        Category::UnitGradients => RGBColor(185, 145, 205),
        Category::Tokens => RGBColor(70, 70, 70),
        Category::Rope => RGBColor(150, 150, 150),
        Category::LayerInputs => RGBColor(0, 115, 85),
        Category::AttentionOutputs => RGBColor(95, 195, 150),
        Category::Working => RGBColor(235, 160, 20),
        Category::Logits => RGBColor(205, 75, 10),
        Category::Communication => RGBColor(240, 228, 66),
        Category::Scratch => RGBColor(205, 200, 190),
    }
}

/// Names in a sentence: "a", "a and b", "a, b and c".
pub fn join(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
