//! "positions": mean loss by position in the last step, longest runs of one length.

use anyhow::Result;
use plotters::style::Color;

use super::Figure;
use super::axes::{Frame, Scale, TEXT, label, ticks, title};
use super::canvas::{Align, Canvas, GREY, figure};
use super::ends::{End, names};
use super::rows::{Rung, join, rungs};
use crate::record::Records;
use crate::record::run::{PositionBand, Run};
use crate::units::format_tokens;

const SIZE: (u32, u32) = (1000, 620);
/// The vertical axis spans at least this, nats: small differences shall look small.
const LEAST_SPAN: f64 = 0.2;

/// One rung's longest run and its bands in the last step.
struct Line<'a> {
    rung: Rung<'a>,
    run: &'a Run,
    bands: Vec<(&'a PositionBand, f64)>,
}

fn line<'a>(rung: Rung<'a>, records: &'a Records) -> Option<Line<'a>> {
    let run = rung.longest()?;
    let loss = |b: &'a PositionBand| b.mean_loss.filter(|l| l.is_finite()).map(|l| (b, l));
    let found: Vec<_> = records.positions.iter().filter(|b| b.run == run.run).filter_map(loss).collect();
    let step = found.iter().map(|b| b.0.step).max()?;
    let mut bands: Vec<_> = found.into_iter().filter(|b| b.0.step == step && b.0.end_token > b.0.start_token).collect();
    bands.sort_by_key(|b| b.0.start_token);
    (bands.len() > 1).then_some(Line { rung, run, bands })
}

/// The figure: the length at which both positions as they are and YaRN's were trained, if there is one.
pub fn draw(records: &Records) -> Result<Option<Figure>> {
    let lines: Vec<Line> = rungs(records).into_iter().filter_map(|r| line(r, records)).collect();
    let has = |length: u64, rope: &str| lines.iter().any(|l| l.run.length_tokens == length && l.run.rope == rope);
    let count = |length: u64| lines.iter().filter(|l| l.run.length_tokens == length).count();
    let both = |length: u64| has(length, "yarn") && has(length, "default");
    let length = lines.iter().map(|l| l.run.length_tokens).max_by_key(|&l| (both(l), count(l), l));
    let Some(length) = length else { return Ok(None) };
    let lines: Vec<Line> = lines.into_iter().filter(|l| l.run.length_tokens == length).collect();
    let text = finding(&lines);
    figure("positions", text.clone(), SIZE, |canvas| chart(canvas, &lines, &text)).map(Some)
}

fn finding(lines: &[Line]) -> String {
    let first = &lines[0];
    let tokens = format_tokens(first.run.length_tokens);
    let after = format!("in step {}", first.bands[0].0.step + 1);
    let same = |a: &PositionBand, b: &PositionBand| (a.start_token, a.end_token) == (b.start_token, b.end_token);
    let alike = |l: &Line| {
        let pairs = l.bands.iter().zip(&first.bands);
        l.bands.len() == first.bands.len() && pairs.clone().all(|(a, b)| same(a.0, b.0) && a.0.step == b.0.step)
    };
    if lines.len() > 1 && lines.iter().all(alike) {
        let apart = |i: usize| {
            let losses = lines.iter().map(|l| l.bands[i].1);
            let (low, high) = losses.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
            high - low
        };
        let most = (0..first.bands.len()).map(apart).fold(0.0, f64::max);
        let ropes = lines.iter().any(|l| l.run.rope == "yarn");
        let name = |l: &Line| match l.run.rope.as_str() {
            "default" if ropes => format!("{} (no YaRN)", l.rung.name),
            _ => l.rung.name.to_owned(),
        };
        let names: Vec<String> = lines.iter().map(name).collect();
        let names = join(&names.iter().map(String::as_str).collect::<Vec<_>>());
        return format!("Loss by position at {tokens} tokens: {names} differ by at most {} nats {after}", nats(most));
    }
    let ends: Vec<String> = lines
        .iter()
        .map(|l| format!("{} from {:.2} to {:.2} nats", l.rung.name, l.bands[0].1, l.bands[l.bands.len() - 1].1))
        .collect();
    format!("Loss by position at {tokens} tokens {after}, first to last: {}", ends.join(", "))
}

/// A difference with two digits that count.
fn nats(value: f64) -> String {
    let digits = if value > 0.0 { (1.0 - value.log10().floor()).clamp(1.0, 6.0) as usize } else { 1 };
    format!("{value:.digits$}")
}

fn chart(canvas: &Canvas, lines: &[Line], text: &str) -> Result<()> {
    let width = f64::from(SIZE.0);
    let top = title(canvas, text, width)?;
    let frame = Frame { left: 96.0, right: width - 130.0, top: top + 22.0, bottom: f64::from(SIZE.1) - 66.0 };
    let bands = || lines.iter().flat_map(|l| &l.bands);
    let longest = bands().map(|b| b.0.end_token).max().unwrap_or(1) as f64;
    let low = bands().map(|b| b.1).fold(f64::INFINITY, f64::min);
    let high = bands().map(|b| b.1).fold(f64::NEG_INFINITY, f64::max);
    let half = f64::max((high - low) * 0.6, LEAST_SPAN / 2.0);
    let (low, high) = ((low + high) / 2.0 - half, (low + high) / 2.0 + half);
    let x = Scale::linear((0.0, longest), (frame.left, frame.right));
    let y = Scale::linear((low, high), (frame.bottom, frame.top));
    let (values, digits) = ticks(low, high, 6);
    let values: Vec<_> = values.into_iter().map(|v| (v, format!("{v:.digits$}"))).collect();
    frame.y_axis(canvas, &y, &values, "mean loss of a band, nats (not from 0)")?;
    let (values, _) = ticks(0.0, longest, 8);
    let values: Vec<_> = values.into_iter().map(|v| (v, format_tokens(v as u64))).collect();
    frame.x_axis(canvas, &x, &values, "position in the sequence, tokens")?;

    let original = lines.iter().filter(|l| l.run.rope == "yarn").find_map(|l| l.run.yarn_original_tokens);
    if let Some(original) = original.map(|o| o as f64).filter(|&o| o > 0.0 && o < longest) {
        let at = x.at(original);
        canvas.dashed(&[(at, frame.top), (at, frame.bottom)], 1.2, GREY.to_rgba(), 3.0, 4.0)?;
        let side = if original < longest / 2.0 { (8.0, Align::Left) } else { (-8.0, Align::Right) };
        let text = format!("YaRN's original length, {}", format_tokens(original as u64));
        label(canvas, &text, (at + side.0, frame.bottom - 16.0), side.1, false, GREY)?;
    }
    let (mut ends, mut drawn) = (Vec::new(), Vec::new());
    for line in lines {
        let middle = |b: &PositionBand| (b.start_token as f64 + b.end_token as f64) / 2.0;
        let points: Vec<_> = line.bands.iter().map(|(b, loss)| (x.at(middle(b)), y.at(*loss))).collect();
        line.rung.line(canvas, &points)?;
        for &at in &points {
            line.rung.mark(canvas, at)?;
        }
        let at = points[points.len() - 1];
        ends.push(End { text: line.rung.name.to_owned(), at, colour: line.rung.colour() });
        drawn.push(points);
    }
    let bands = lines[0].bands.len();
    let text = format!("points: {bands} bands, at their middles");
    canvas.text(&text, (frame.right, frame.top - 12.0), TEXT - 1.0, Align::Right, false, GREY)?;
    names(canvas, &ends, &drawn, &frame)
}
