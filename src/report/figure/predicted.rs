//! "predicted": how far the plan is from the ledger, and the ledger from the allocator.

use anyhow::Result;
use plotters::style::Color;

use super::Figure;
use super::axes::{Frame, Scale, TEXT, length_ticks, short_tokens, ticks, title};
use super::canvas::{Align, Canvas, GREY, INK, figure, text_width};
use super::rows::{Rung, rungs};
use crate::record::Records;
use crate::record::run::{Run, Status};
use crate::units::format_bytes;

const SIZE: (u32, u32) = (1000, 640);

/// A figure of a run, where it has one.
type Value = fn(&Run) -> Option<f64>;

/// Rungs of one length stand this far apart, pixels.
const ASIDE: f64 = 5.0;

/// How far `other` is above `base`, percent; none if one of them wasn't taken.
fn percent(base: u64, other: u64) -> Option<f64> {
    (base > 0 && other > 0).then(|| (other as f64 - base as f64) / base as f64 * 100.0)
}

/// The plan's peak over the ledger's, percent.
fn plan(run: &Run) -> Option<f64> {
    percent(run.peak_device_bytes, run.predicted_peak_device_bytes)
}

/// The allocator's peak over the ledger's, percent.
fn measured(run: &Run) -> Option<f64> {
    percent(run.peak_process_ledger_bytes, run.peak_process_measured_bytes)
}

/// The runs that count: those that ended well.
fn runs<'a>(rung: &Rung<'a>) -> impl Iterator<Item = &'a Run> {
    rung.runs.clone().into_iter().filter(|r| r.status == Status::Ok && r.length_tokens > 0)
}

/// The figure; none without a run with a plan or a measurement.
pub fn draw(records: &Records) -> Result<Option<Figure>> {
    let mut rungs = rungs(records);
    rungs.retain(|rung| runs(rung).any(|r| plan(r).or(measured(r)).is_some()));
    if rungs.is_empty() {
        return Ok(None);
    }
    let text = finding(&rungs);
    figure("predicted", text.clone(), SIZE, |canvas| chart(canvas, &rungs, &text)).map(Some)
}

/// Lowest and highest of the values, if there are any.
fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
    (low <= high).then_some((low, high))
}

/// A percentage with two digits that count, and its sign unless it is 0.
fn signed(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (1.0 - value.abs().log10().floor()).clamp(0.0, 5.0) as usize;
    format!("{value:+.digits$}").replace('-', "−")
}

fn finding(rungs: &[Rung]) -> String {
    let all = || rungs.iter().flat_map(runs);
    let exact = all().filter(|r| plan(r) == Some(0.0)).count();
    let planned = all().filter(|r| plan(r).is_some()).count();
    let mut parts = Vec::new();
    if let Some((low, high)) = span(all().filter_map(plan)) {
        let farthest = all().filter_map(Run::plan_farthest_off).max_by_key(|(_, bytes)| bytes.abs());
        let by_category = match farthest {
            None => String::new(),
            Some((_, 0)) => ", category by category".to_owned(),
            Some((category, bytes)) => {
                format!(", at most {} off in a category ({})", format_bytes(bytes.unsigned_abs()), category.label())
            }
        };
        parts.push(match exact {
            n if n == planned => {
                format!("the plan is the ledger's peak to the byte{by_category}, in all {n} runs")
            }
            n => format!(
                "the plan is {} to {} % off the ledger ({n} of {planned} exact){by_category}",
                signed(low),
                signed(high)
            ),
        });
    }
    if let Some((low, high)) = span(all().filter_map(measured)) {
        let plain = |v: f64| signed(v).trim_start_matches(['+', '−']).to_owned();
        parts.push(match low > 0.0 {
            true => format!("the allocator measures {} to {} % above the ledger", plain(low), plain(high)),
            false => format!("the allocator measures {} to {} % against the ledger", signed(low), signed(high)),
        });
    }
    let text = parts.join("; ");
    text[..1].to_uppercase() + &text[1..]
}

fn chart(canvas: &Canvas, rungs: &[Rung], text: &str) -> Result<()> {
    let top = title(canvas, text, f64::from(SIZE.0))?.max(80.0);
    let bottom = f64::from(SIZE.1) - 106.0;
    let marks = length_ticks(rungs.iter().flat_map(runs).map(|r| r.length_tokens));
    let panels: [(&str, &str, Value); 2] =
        [("Plan against ledger", "a rank's device", plan), ("Allocator against ledger", "whole process", measured)];
    for (i, (name, what, value)) in panels.into_iter().enumerate() {
        let left = 88.0 + 495.0 * i as f64;
        let frame = Frame { left, right: left + 390.0, top: top + 50.0, bottom };
        canvas.text(name, (left, top + 20.0), TEXT + 1.0, Align::Left, true, INK)?;
        let at = left + text_width(name, TEXT + 1.0, true) + 10.0;
        canvas.text(what, (at, top + 20.0), TEXT - 1.0, Align::Left, false, GREY)?;
        panel(canvas, rungs, &frame, &marks, value)?;
    }
    let mut x = 30.0;
    for rung in rungs {
        rung.mark(canvas, (x, bottom + 78.0))?;
        canvas.text(rung.name, (x + 14.0, bottom + 78.0), TEXT, Align::Left, false, INK)?;
        x += 14.0 + text_width(rung.name, TEXT, false) + 34.0;
    }
    let text = "rungs of one length side by side";
    canvas.text(text, (f64::from(SIZE.0) - 20.0, bottom + 78.0), TEXT - 1.0, Align::Right, false, GREY)
}

fn panel(canvas: &Canvas, rungs: &[Rung], frame: &Frame, marks: &[u64], value: fn(&Run) -> Option<f64>) -> Result<()> {
    let Some((low, high)) = span(rungs.iter().flat_map(runs).filter_map(value)) else {
        let at = ((frame.left + frame.right) / 2.0, (frame.top + frame.bottom) / 2.0);
        return canvas.text("not measured", at, TEXT, Align::Centre, false, GREY);
    };
    // Zero is always in view; if all is zero, so is a percent on both sides.
    let (low, high) = if low == 0.0 && high == 0.0 { (-1.0, 1.0) } else { (low.min(0.0), high.max(0.0)) };
    let room = (high - low) * 0.08;
    let (low, high) = (low - room, high + room);
    let y = Scale::linear((low, high), (frame.bottom, frame.top));
    let (values, digits) = ticks(low, high, 6);
    let sign = |v: f64| format!("{:.digits$}", if v == 0.0 { 0.0 } else { v }).replace('-', "−");
    let values: Vec<_> = values.into_iter().map(|v| (v, sign(v))).collect();
    frame.y_axis(canvas, &y, &values, "difference, % of the ledger's peak")?;
    let ends = (marks[0] as f64 * 0.85, marks[marks.len() - 1] as f64);
    let x = Scale::log(ends, (frame.left, frame.right));
    let labels: Vec<_> = marks.iter().map(|&t| (t as f64, short_tokens(t))).collect();
    frame.x_axis(canvas, &x, &labels, "length, tokens (logarithmic)")?;
    canvas.line(&[(frame.left, y.at(0.0)), (frame.right, y.at(0.0))], 1.5, GREY.to_rgba())?;
    for rung in rungs {
        for (run, value) in runs(rung).filter_map(|r| Some((r, value(r)?))) {
            // Rungs that ran this length stand side by side around it.
            let same = |r: &&Rung| runs(r).any(|other| other.length_tokens == run.length_tokens);
            let sharing: Vec<usize> = rungs.iter().filter(same).map(|r| r.index).collect();
            let place = sharing.iter().position(|i| *i == rung.index).unwrap_or(0) as f64;
            let aside = (place - (sharing.len() as f64 - 1.0) / 2.0) * ASIDE;
            rung.mark(canvas, (x.at(run.length_tokens as f64) + aside, y.at(value)))?;
        }
    }
    Ok(())
}
