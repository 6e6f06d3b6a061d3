//! "step-time": seconds of a step against length, a line per rung.

use anyhow::Result;

use super::Figure;
use super::axes::{Frame, Scale, length_ticks, short_tokens, title};
use super::canvas::{Canvas, figure};
use super::ends::{End, names};
use super::rows::{Rung, join, rungs};
use crate::record::Records;
use crate::units::format_tokens;

const SIZE: (u32, u32) = (1000, 620);

/// One rung's points: length in tokens and seconds of a step.
struct Line<'a> {
    rung: Rung<'a>,
    points: Vec<(u64, f64)>,
}

/// The figure; none without a timed step.
pub fn draw(records: &Records) -> Result<Option<Figure>> {
    let mut lines = Vec::new();
    for rung in rungs(records) {
        let points: Vec<_> =
            rung.curve().iter().filter_map(|r| Some((r.length_tokens, r.mean_step_seconds()?))).collect();
        if !points.is_empty() {
            lines.push(Line { rung, points });
        }
    }
    if lines.is_empty() {
        return Ok(None);
    }
    let text = finding(&lines);
    figure("step-time", text.clone(), SIZE, |canvas| chart(canvas, &lines, &text)).map(Some)
}

/// Seconds with three digits that count.
fn short(seconds: f64) -> String {
    let digits = (2.0 - seconds.log10().floor()).clamp(0.0, 9.0) as usize;
    format!("{seconds:.digits$} s")
}

fn finding(lines: &[Line]) -> String {
    let at = |length: u64| {
        let here = |l: &Line| l.points.iter().find(|p| p.0 == length).map(|p| (p.1, l.rung.name.to_owned()));
        let mut found: Vec<(f64, String)> = lines.iter().filter_map(here).collect();
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found
    };
    let lengths = || lines.iter().flat_map(|l| l.points.iter().map(|p| p.0));
    // The length that most rungs ran; of several, the longest.
    let common = lengths().max_by_key(|&l| (at(l).len(), l)).unwrap_or(0);
    let furthest = lengths().max().unwrap_or(0);
    let describe = |length: u64, lead: &str| {
        let found = at(length);
        let (Some(low), Some(high)) = (found.first(), found.last()) else { return String::new() };
        let tokens = format_tokens(length);
        if short(low.0) == short(high.0) {
            let names: Vec<&str> = found.iter().map(|f| f.1.as_str()).collect();
            return format!("{lead} {tokens} tokens a step takes {} ({})", short(low.0), join(&names));
        }
        format!("{lead} {tokens} tokens a step takes {} ({}) to {} ({})", short(low.0), low.1, short(high.0), high.1)
    };
    let first = describe(common, "At");
    if furthest == common {
        return first;
    }
    format!("{first}; {}", describe(furthest, "at").replace(" a step takes", ""))
}

/// 1, 2 and 5 times powers of ten that enclose the values.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let all: Vec<f64> = powers.flat_map(|p| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(p))).collect();
    let first = all.iter().rposition(|&t| t <= low * 1.0001).unwrap_or(0);
    let last = all.iter().position(|&t| t >= high * 0.9999).unwrap_or(all.len() - 1).max(first + 1);
    all[first..=last.min(all.len() - 1)].to_vec()
}

fn chart(canvas: &Canvas, lines: &[Line], text: &str) -> Result<()> {
    let width = f64::from(SIZE.0);
    let top = title(canvas, text, width)?;
    let frame = Frame { left: 92.0, right: width - 125.0, top: top + 20.0, bottom: f64::from(SIZE.1) - 66.0 };
    let points = || lines.iter().flat_map(|l| &l.points);
    let marks = length_ticks(points().map(|p| p.0));
    let x = Scale::log((marks[0] as f64, marks[marks.len() - 1] as f64), (frame.left, frame.right));
    let low = points().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = points().map(|p| p.1).fold(0.0, f64::max);
    let values = log_ticks(low, high);
    let y = Scale::log((values[0], values[values.len() - 1]), (frame.bottom, frame.top));
    let values: Vec<_> = values.iter().map(|&v| (v, format!("{}", (v * 1e9).round() / 1e9))).collect();
    frame.y_axis(canvas, &y, &values, "seconds of a step (logarithmic)")?;
    let marks: Vec<_> = marks.iter().map(|&t| (t as f64, short_tokens(t))).collect();
    frame.x_axis(canvas, &x, &marks, "sequence length, tokens (logarithmic; 1k = 1024)")?;

    let (mut ends, mut drawn) = (Vec::new(), Vec::new());
    for line in lines {
        let points: Vec<_> = line.points.iter().map(|p| (x.at(p.0 as f64), y.at(p.1))).collect();
        line.rung.line(canvas, &points)?;
        for &at in &points {
            line.rung.mark(canvas, at)?;
        }
        if let Some(&at) = points.last() {
            ends.push(End { text: line.rung.name.to_owned(), at, colour: line.rung.colour() });
        }
        drawn.push(points);
    }
    names(canvas, &ends, &drawn, &frame)
}
