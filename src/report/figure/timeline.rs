//! "timelines": what a rank holds through a step, a panel per rung, stacked by category.

use anyhow::Result;
use plotters::style::Color;

use super::Figure;
use super::axes::{Frame, Scale, TEXT, ticks, title};
use super::canvas::{Align, Canvas, GREY, INK, figure, text_width};
use super::legend::{categories, height as legend_height};
use super::rows::{Rung, byte_unit, category_colour, join, rungs};
use crate::memory::category::{Bytes, Category};
use crate::record::Records;
use crate::record::run::{Run, TimelinePoint};
use crate::units::{format_bytes, format_tokens};

const WIDTH: f64 = 1000.0;
/// Height of a row of panels, pixels.
const ROW: f64 = 262.0;
/// Segments of a panel: more are merged, the fullest stays.
const SEGMENTS: usize = 300;

/// One rung's longest run and the last step that it left marks of.
struct Panel<'a> {
    rung: Rung<'a>,
    run: &'a Run,
    points: Vec<&'a TimelinePoint>,
    /// Seconds of the step.
    seconds: f64,
}

fn panel<'a>(rung: Rung<'a>, records: &'a Records) -> Option<Panel<'a>> {
    let run = rung.longest()?;
    let marks = || records.timeline.iter().filter(|p| p.run == run.run && p.rank == 0 && p.seconds.is_finite());
    // A step with a single mark is not yet a picture.
    let count = |step: u32| marks().filter(|p| p.step == step).count();
    let step = marks().map(|p| p.step).filter(|&s| count(s) > 1).max()?;
    let mut points: Vec<_> = marks().filter(|p| p.step == step && p.phase != "load").collect();
    points.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let (first, last) = (points.first()?.seconds, points.last()?.seconds);
    let took = run.step_seconds.get(step as usize).copied().filter(|s| s.is_finite()).unwrap_or(0.0);
    let next = marks().filter(|p| p.step == step + 1).map(|p| p.seconds - first).fold(f64::INFINITY, f64::min);
    let marked = (last - first) * (1.0 + 1.0 / points.len() as f64);
    let seconds = if next.is_finite() { next } else { took.max(marked) };
    (seconds > 0.0 && last > first).then_some(Panel { rung, run, points, seconds })
}

/// The figure; none without marks of a longest run.
pub fn draw(records: &Records) -> Result<Option<Figure>> {
    let panels: Vec<Panel> = rungs(records).into_iter().filter_map(|r| panel(r, records)).collect();
    if panels.is_empty() {
        return Ok(None);
    }
    let held = |c: Category| panels.iter().flat_map(|p| &p.points).any(|p| p.device.of(c) > 0);
    let present: Vec<Category> = Category::ALL.into_iter().filter(|&c| held(c)).collect();
    let text = finding(&panels);
    let rows = panels.len().div_ceil(2) as f64;
    let height = 96.0 + ROW * rows + legend_height(&present, WIDTH - 40.0) + 10.0;
    let draw = |canvas: &Canvas| {
        let top = title(canvas, &text, WIDTH)?.max(80.0);
        let highest = panels.iter().flat_map(|p| &p.points).map(|p| p.device.total()).max().unwrap_or(1);
        let highest = panels.iter().filter_map(|p| p.run.budget_bytes).chain([highest]).max().unwrap_or(1).max(1);
        for (i, panel) in panels.iter().enumerate() {
            let left = if i % 2 == 0 { 70.0 } else { 560.0 };
            let top = top + ROW * (i / 2) as f64;
            let frame = Frame { left, right: left + 415.0, top: top + 58.0, bottom: top + ROW - 52.0 };
            let lowest = i + 2 >= panels.len();
            chart(canvas, panel, &frame, highest, if lowest { "seconds of the last step, rank 0" } else { "" })?;
        }
        categories(canvas, &present, (20.0, top + ROW * rows + 14.0), WIDTH - 40.0)
    };
    figure("timelines", text.clone(), (WIDTH as u32, height as u32), draw).map(Some)
}

fn finding(panels: &[Panel]) -> String {
    let mut phases: Vec<(&str, Vec<&str>)> = Vec::new();
    for panel in panels {
        let phase = panel.run.peak_phase.as_str();
        match phases.iter_mut().find(|p| p.0 == phase) {
            Some(p) => p.1.push(panel.rung.name),
            None => phases.push((phase, vec![panel.rung.name])),
        }
    }
    if let [(phase, names)] = phases.as_slice()
        && names.len() > 1
    {
        return format!("At its longest length, every rung's memory peaks in {phase}");
    }
    let parts: Vec<String> = phases.iter().map(|(phase, names)| format!("{phase} ({})", join(names))).collect();
    format!("At the longest length, memory peaks in {}", parts.join("; in "))
}

fn chart(canvas: &Canvas, panel: &Panel, frame: &Frame, highest: u64, below: &str) -> Result<()> {
    let (unit, name) = byte_unit(highest);
    let y = Scale::linear((0.0, highest as f64 / unit * 1.04), (frame.bottom, frame.top));
    let (values, digits) = ticks(0.0, highest as f64 / unit, 4);
    let values: Vec<_> = values.into_iter().map(|v| (v, format!("{v:.digits$}"))).collect();
    frame.y_axis(canvas, &y, &values, name)?;
    let x = Scale::linear((0.0, panel.seconds), (frame.left, frame.right));
    let heading = format!("{}: {} tokens", panel.rung.name, format_tokens(panel.run.length_tokens));
    canvas.text(&heading, (frame.left, frame.top - 44.0), TEXT + 1.0, Align::Left, true, INK)?;

    let start = panel.points[0].seconds;
    let segments = segments(&panel.points, start, panel.seconds);
    for last in (0..Category::COUNT).rev() {
        let mut outline = vec![(x.at(0.0), y.at(0.0))];
        for (i, (at, bytes)) in segments.iter().enumerate() {
            let end = segments.get(i + 1).map_or(panel.seconds, |s| s.0);
            let sum = bytes.0[..=last].iter().sum::<u64>() as f64 / unit;
            outline.extend([(x.at(*at), y.at(sum)), (x.at(end), y.at(sum))]);
        }
        outline.push((x.at(panel.seconds), y.at(0.0)));
        if segments.iter().any(|s| s.1.0[last] > 0) {
            canvas.polygon(&outline, category_colour(Category::ALL[last]).to_rgba())?;
        }
    }
    phases(canvas, panel, frame, &x)?;
    let (values, digits) = ticks(0.0, panel.seconds, 5);
    let values: Vec<_> = values.into_iter().map(|v| (v, format!("{v:.digits$}"))).collect();
    frame.x_axis(canvas, &x, &values, below)?;
    if let Some(budget) = panel.run.budget_bytes {
        let at = y.at(budget as f64 / unit);
        canvas.dashed(&[(frame.left, at), (frame.right, at)], 1.8, INK.to_rgba(), 8.0, 5.0)?;
        let text = format!("budget {}", format_bytes(budget));
        let at = (frame.right, frame.top - 44.0);
        canvas.text(&format!("– – {text}"), at, TEXT - 1.0, Align::Right, false, GREY)?;
    }
    Ok(())
}

/// The marks from the step's start, merged to at most [`SEGMENTS`]; of those merged, the fullest.
fn segments(points: &[&TimelinePoint], start: f64, seconds: f64) -> Vec<(f64, Bytes)> {
    let mut merged: Vec<(usize, f64, Bytes)> = Vec::new();
    for p in points {
        let at = p.seconds - start;
        let bin = (at / seconds * SEGMENTS as f64) as usize;
        match merged.last_mut() {
            Some(last) if last.0 == bin => {
                if p.device.total() > last.2.total() {
                    last.2 = p.device;
                }
            }
            _ => merged.push((bin, at, p.device)),
        }
    }
    merged.into_iter().map(|(_, at, bytes)| (at, bytes)).collect()
}

/// Thin lines where phases begin and their names above, moved apart where a phase is short.
fn phases(canvas: &Canvas, panel: &Panel, frame: &Frame, x: &Scale) -> Result<()> {
    let start = panel.points[0].seconds;
    let mut begins: Vec<(&str, f64)> = Vec::new();
    for p in &panel.points {
        if begins.last().is_none_or(|b| b.0 != p.phase) {
            begins.push((&p.phase, p.seconds - start));
        }
    }
    if begins.len() > 8 {
        return Ok(());
    }
    let size = TEXT - 1.0;
    let mut lefts = Vec::new();
    let mut taken = frame.left;
    for (i, (name, at)) in begins.iter().enumerate() {
        let end = begins.get(i + 1).map_or(panel.seconds, |b| b.1);
        let wide = text_width(name, size, false);
        let left = f64::max(x.at((at + end) / 2.0) - wide / 2.0, taken);
        taken = left + wide + 10.0;
        lefts.push((left, wide));
    }
    let mut limit = frame.right + 24.0;
    for (left, wide) in lefts.iter_mut().rev() {
        *left = left.min(limit - *wide);
        limit = *left - 10.0;
    }
    for ((name, at), (left, _)) in begins.iter().zip(lefts) {
        let at = x.at(*at);
        canvas.line(&[(at, frame.top - 6.0), (at, frame.bottom)], 1.0, INK.mix(0.7))?;
        canvas.text(name, (left, frame.top - 18.0), size, Align::Left, false, GREY)?;
    }
    canvas.line(&[(frame.left, frame.top - 6.0), (frame.right, frame.top - 6.0)], 1.0, INK.mix(0.7))?;
    canvas.line(&[(frame.right, frame.top - 6.0), (frame.right, frame.bottom)], 1.0, INK.mix(0.7))
}
