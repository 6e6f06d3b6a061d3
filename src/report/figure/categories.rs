//! "categories": what fills a rank at its peak, a bar per rung at its longest length.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::Figure;
use super::axes::{Frame, Scale, TEXT, ticks, title};
use super::canvas::{Align, Canvas, GREY, GRID, INK, figure, text_width};
use super::legend;
use super::rows::{byte_unit, category_colour, rungs};
use crate::memory::category::Category;
use crate::record::Records;
use crate::record::run::Run;
use crate::units::{format_bytes, format_tokens};

const WIDTH: f64 = 1000.0;
/// Height of a bar with the gap below it, pixels.
const BAR: f64 = 64.0;

/// The figure; none without a run that ended well and held something.
pub fn draw(records: &Records) -> Result<Option<Figure>> {
    let held = |r: &&Run| r.at_peak_device.total() > 0;
    let bars: Vec<&Run> = rungs(records).iter().filter_map(|rung| rung.longest().filter(held)).collect();
    if bars.is_empty() {
        return Ok(None);
    }
    let present: Vec<Category> =
        Category::ALL.into_iter().filter(|&c| bars.iter().any(|r| r.at_peak_device.of(c) > 0)).collect();
    let text = finding(&bars);
    let height = 118.0 + BAR * bars.len() as f64 + 76.0 + legend::height(&present, WIDTH - 40.0);
    let draw = |canvas: &Canvas| chart(canvas, &bars, &present, &text);
    figure("categories", text.clone(), (WIDTH as u32, height as u32), draw).map(Some)
}

fn finding(bars: &[&Run]) -> String {
    let largest = |run: &Run| {
        let bytes = run.at_peak_device;
        let most = Category::ALL.into_iter().max_by_key(|&c| bytes.of(c)).unwrap_or(Category::Weights);
        let share = 100.0 * bytes.of(most) as f64 / bytes.total() as f64;
        format!("{:.0} % of {} ({} tokens)", share, run.rung, format_tokens(run.length_tokens)) + " is " + most.label()
    };
    let first = format!("What fills a rank at its peak: {}", largest(bars[0]));
    match bars {
        [_, .., last] => format!("{first}, {}", largest(last)),
        _ => first,
    }
}

fn chart(canvas: &Canvas, bars: &[&Run], present: &[Category], text: &str) -> Result<()> {
    let top = title(canvas, text, WIDTH)?.max(80.0);
    let names = bars.iter().map(|r| text_width(&r.rung, TEXT, true));
    let lengths = bars.iter().map(|r| text_width(&format!("{} tokens", format_tokens(r.length_tokens)), TEXT, false));
    let left = names.chain(lengths).fold(0.0, f64::max).min(260.0) + 34.0;
    let bottom = top + 38.0 + BAR * bars.len() as f64;
    let frame = Frame { left, right: WIDTH - 110.0, top: top + 30.0, bottom };
    let totals = bars.iter().map(|r| r.at_peak_device.total());
    let highest = bars.iter().filter_map(|r| r.budget_bytes).chain(totals).max().unwrap_or(1).max(1);
    let (unit, name) = byte_unit(highest);
    let x = Scale::linear((0.0, highest as f64 / unit), (frame.left, frame.right));
    let (values, digits) = ticks(0.0, highest as f64 / unit, 8);
    for &v in &values {
        canvas.line(&[(x.at(v), frame.top), (x.at(v), frame.bottom)], 1.0, GRID.to_rgba())?;
    }
    for (i, run) in bars.iter().enumerate() {
        bar(canvas, run, &x, unit, frame.top + 8.0 + BAR * i as f64)?;
    }
    let values: Vec<_> = values.into_iter().map(|v| (v, format!("{v:.digits$}"))).collect();
    frame.x_axis(canvas, &x, &values, &format!("device memory of the fullest rank at its peak, {name}"))?;
    if let Some(budget) = bars.iter().filter_map(|r| r.budget_bytes).max() {
        let at = x.at(budget as f64 / unit);
        canvas.dashed(&[(at, frame.top - 12.0), (at, frame.bottom)], 1.8, INK.to_rgba(), 8.0, 5.0)?;
        let text = format!("budget {}", format_bytes(budget));
        let at = (at.min(WIDTH - 20.0 - text_width(&text, TEXT, false) / 2.0), frame.top - 22.0);
        canvas.text(&text, at, TEXT, Align::Centre, false, INK)?;
    }
    legend::categories(canvas, present, (20.0, bottom + 82.0), WIDTH - 40.0)
}

fn bar(canvas: &Canvas, run: &Run, x: &Scale, unit: f64, top: f64) -> Result<()> {
    let (bottom, middle) = (top + BAR - 20.0, top + (BAR - 20.0) / 2.0);
    let left = x.at(0.0) - 12.0;
    canvas.text(&run.rung, (left, middle - 11.0), TEXT, Align::Right, true, INK)?;
    let tokens = format!("{} tokens", format_tokens(run.length_tokens));
    canvas.text(&tokens, (left, middle + 11.0), TEXT, Align::Right, false, GREY)?;
    let mut below = 0;
    for category in Category::ALL {
        let bytes = run.at_peak_device.of(category);
        let (from, to) = (x.at(below as f64 / unit), x.at((below + bytes) as f64 / unit));
        below += bytes;
        if bytes == 0 {
            continue;
        }
        let colour = category_colour(category);
        canvas.rect((from, top), (to, bottom), colour.to_rgba())?;
        let text = format!("{:.1}", bytes as f64 / unit);
        if to - from > text_width(&text, TEXT, false) + 8.0 {
            canvas.text(&text, ((from + to) / 2.0, middle), TEXT, Align::Centre, false, on(colour))?;
        }
        if to - from > 4.0 {
            canvas.line(&[(to, top), (to, bottom)], 1.0, RGBColor(255, 255, 255).to_rgba())?;
        }
    }
    let total = format_bytes(below);
    let mut end = x.at(below as f64 / unit) + 9.0;
    // Not across the budget's line.
    let line = run.budget_bytes.map_or(f64::NEG_INFINITY, |b| x.at(b as f64 / unit));
    if line > end - 9.0 && line < end + text_width(&total, TEXT, true) + 6.0 {
        end = line + 8.0;
    }
    canvas.text(&total, (end, middle), TEXT, Align::Left, true, INK)
}

/// Black or white, whichever reads better on a colour.
fn on(colour: RGBColor) -> RGBColor {
    let light = 0.299 * f64::from(colour.0) + 0.587 * f64::from(colour.1) + 0.114 * f64::from(colour.2);
    if light > 135.0 { INK } else { RGBColor(255, 255, 255) }
}
