//! "ladder": peak memory of a rank against length, a line per rung, up to the budget.

use anyhow::Result;
use plotters::style::Color;

use super::Figure;
use super::axes::{Frame, Scale, TEXT, label, length_ticks, short_tokens, spread, ticks, title};
use super::canvas::{Align, Canvas, INK, figure, text_width};
use super::rows::{Rung, byte_unit, join, rungs};
use crate::record::Records;
use crate::record::run::Status;
use crate::units::{format_bytes, format_tokens};

const SIZE: (u32, u32) = (1000, 640);
/// Distance between the rows of labels above the budget, pixels.
const ROW: f64 = 23.0;

/// The figure; none without a run that ended well.
pub fn draw(records: &Records) -> Result<Option<Figure>> {
    let rungs: Vec<Rung> = rungs(records).into_iter().filter(|r| r.longest().is_some()).collect();
    if rungs.is_empty() {
        return Ok(None);
    }
    let text = finding(&rungs);
    let draw = |canvas: &Canvas| chart(canvas, &rungs, &text);
    figure("ladder", text.clone(), SIZE, draw).map(Some)
}

fn budget(rungs: &[Rung]) -> Option<u64> {
    rungs.iter().flat_map(|r| &r.runs).filter_map(|r| r.budget_bytes).max()
}

fn finding(rungs: &[Rung]) -> String {
    let reach = |r: &Rung| r.longest().map_or(0, |l| l.length_tokens);
    let (first, mut last) = (&rungs[0], &rungs[0]);
    for rung in rungs {
        if reach(rung) > reach(last) {
            last = rung;
        }
    }
    let under = budget(rungs).map_or(String::new(), |b| format!("Under {} a rank, ", format_bytes(b)));
    let start = format!("{under}{} fits {} tokens", first.name, format_tokens(reach(first)));
    if last.index == first.index {
        return start;
    }
    let names: Vec<&str> = rungs.iter().filter(|r| reach(r) == reach(last)).map(|r| r.name).collect();
    let ranks = last.longest().map_or(1, |l| l.ranks);
    let on = if ranks > 1 { format!(" on {ranks} ranks") } else { String::new() };
    let times = reach(last) as f64 / reach(first) as f64;
    let verb = if names.len() > 1 { "fit" } else { "fits" };
    let names = join(&names);
    format!("{start}; {names}{on} {verb} {}, {times:.0} times as many", format_tokens(reach(last)))
}

fn chart(canvas: &Canvas, rungs: &[Rung], text: &str) -> Result<()> {
    let width = f64::from(SIZE.0);
    let top = title(canvas, text, width)?;
    let runs = || rungs.iter().flat_map(|r| r.curve());
    let budget = budget(rungs);
    let highest = runs().map(|r| r.peak_device_bytes).chain(budget).max().unwrap_or(1).max(1);
    let (unit, name) = byte_unit(highest);
    let near = |r: &&Rung| r.longest().zip(budget).is_some_and(|(l, b)| l.peak_device_bytes as f64 > 0.88 * b as f64);
    let head = if budget.is_some() { ROW * rungs.iter().filter(near).count().min(6) as f64 + 16.0 } else { 20.0 };
    let frame = Frame { left: 84.0, right: width - 205.0, top: top + head, bottom: f64::from(SIZE.1) - 66.0 };

    let beyond = rungs.iter().filter_map(|r| r.beyond()).map(|r| r.length_tokens);
    let marks = length_ticks(runs().map(|r| r.length_tokens).chain(beyond));
    let x = Scale::log((marks[0] as f64, marks[marks.len() - 1] as f64), (frame.left, frame.right));
    let y = Scale::linear((0.0, highest as f64 / unit), (frame.bottom, frame.top));
    let (values, digits) = ticks(0.0, highest as f64 / unit, 6);
    let values: Vec<_> = values.into_iter().map(|v| (v, format!("{v:.digits$}"))).collect();
    frame.y_axis(canvas, &y, &values, &format!("peak device memory of a rank, {name}"))?;
    let marks: Vec<_> = marks.iter().map(|&t| (t as f64, short_tokens(t))).collect();
    frame.x_axis(canvas, &x, &marks, "sequence length, tokens (logarithmic; 1k = 1024)")?;

    let height = |bytes: u64| y.at(bytes as f64 / unit);
    if let Some(budget) = budget {
        let at = height(budget);
        canvas.dashed(&[(frame.left, at), (frame.right, at)], 1.8, INK.to_rgba(), 8.0, 5.0)?;
        let text = format!("budget {}", format_bytes(budget));
        canvas.text(&text, (frame.right + 8.0, at), TEXT, Align::Left, false, INK)?;
    }
    for rung in rungs {
        let at = |r: &&_| -> (f64, f64) {
            let r: &crate::record::run::Run = r;
            (x.at(r.length_tokens as f64), height(r.peak_device_bytes))
        };
        let points: Vec<_> = rung.curve().iter().map(at).collect();
        rung.line(canvas, &points)?;
        for &p in &points {
            rung.mark(canvas, p)?;
        }
    }
    for rung in rungs {
        let Some(run) = rung.beyond().filter(|r| r.status == Status::OutOfMemory) else { continue };
        let Some(at) = run.budget_bytes.or(budget) else { continue };
        cross(canvas, (x.at(run.length_tokens as f64), height(at)), rung)?;
    }
    if rungs.iter().filter_map(|r| r.beyond()).any(|r| r.status == Status::OutOfMemory) {
        let at = (frame.right + 8.0, height(budget.unwrap_or(highest)) + 22.0);
        canvas.text("× ran out of memory", at, TEXT, Align::Left, false, INK)?;
    }
    let tip = |r: &Rung| r.longest().map(|l| (x.at(l.length_tokens as f64), height(l.peak_device_bytes)));
    let (above, beside): (Vec<&Rung>, Vec<&Rung>) = rungs.iter().partition(near);
    label_above(canvas, &above, &tip, &frame)?;
    label_beside(canvas, &beside, &tip, &frame)
}

fn cross(canvas: &Canvas, (x, y): (f64, f64), rung: &Rung) -> Result<()> {
    for s in [-1.0, 1.0] {
        canvas.line(&[(x - 7.0, y - 7.0 * s), (x + 7.0, y + 7.0 * s)], 3.0, rung.colour().to_rgba())?;
    }
    Ok(())
}

/// Labels of the lines that end near the budget: in rows above it, with a thin line down to the end.
fn label_above(
    canvas: &Canvas,
    rungs: &[&Rung],
    tip: &dyn Fn(&Rung) -> Option<(f64, f64)>,
    frame: &Frame,
) -> Result<()> {
    // For each row, how far right it is taken.
    let mut rows: Vec<f64> = Vec::new();
    let mut texts = Vec::new();
    for rung in rungs {
        let (Some(run), Some((x, y))) = (rung.longest(), tip(rung)) else { continue };
        let text = format!("{}: {} tokens", rung.name, format_tokens(run.length_tokens));
        let wide = text_width(&text, TEXT, true);
        let centre = x.clamp(frame.left + wide / 2.0, f64::max(frame.right + 190.0 - wide / 2.0, frame.left + wide));
        let row = rows.iter().position(|&end| centre - wide / 2.0 > end + 14.0).unwrap_or(rows.len());
        rows.resize(rows.len().max(row + 1), f64::NEG_INFINITY);
        rows[row] = centre + wide / 2.0;
        let at = (centre, frame.top - 22.0 - ROW * row as f64);
        canvas.line(&[(x, y - 8.0), (x, at.1 + 10.0)], 1.0, rung.colour().to_rgba())?;
        texts.push((text, at, rung.colour()));
    }
    for (text, at, colour) in texts {
        label(canvas, &text, at, Align::Centre, true, colour)?;
    }
    Ok(())
}

/// Labels of the lines that end elsewhere: to the right of the end.
fn label_beside(
    canvas: &Canvas,
    rungs: &[&Rung],
    tip: &dyn Fn(&Rung) -> Option<(f64, f64)>,
    frame: &Frame,
) -> Result<()> {
    let mut labels = Vec::new();
    for rung in rungs {
        let (Some(run), Some((x, y))) = (rung.longest(), tip(rung)) else { continue };
        let mut lines = vec![format!("{}: {} tokens", rung.name, format_tokens(run.length_tokens))];
        if rung.stops_by_design() {
            lines.push("stops here by design,".to_owned());
            let room = run.budget_bytes.map(|b| b.saturating_sub(run.peak_device_bytes));
            lines.extend(room.map(|r| format!("{} of room", format_bytes(r))));
        }
        labels.push((rung, lines, x, y));
    }
    let wanted: Vec<f64> = labels.iter().map(|l| l.3).collect();
    let tall = labels.iter().map(|l| l.1.len()).max().unwrap_or(1) as f64 * 20.0 + 10.0;
    let placed = spread(&wanted, tall, frame.top + tall / 2.0 + 20.0, frame.bottom - tall / 2.0);
    for ((rung, lines, x, _), y) in labels.iter().zip(placed) {
        for (i, line) in lines.iter().enumerate() {
            let at = (x + 14.0, y + 20.0 * (i as f64 - (lines.len() as f64 - 1.0) / 2.0));
            label(canvas, line, at, Align::Left, i == 0, rung.colour())?;
        }
    }
    Ok(())
}
