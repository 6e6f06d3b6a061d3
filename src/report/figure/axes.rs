//! Axes: scales from values to pixels, ticks, the frame, wrapped titles.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::canvas::{Align, Canvas, GREY, GRID, INK, text_width};

/// Font size of axis labels and legends, pixels.
pub const TEXT: f64 = 16.0;
/// Font size of titles, pixels.
pub const TITLE: f64 = 22.0;

/// A map from values to pixels.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    /// Values `low..high` onto pixels `from..to`; an empty or broken range becomes one that can be drawn.
    pub fn linear((low, high): (f64, f64), (from, to): (f64, f64)) -> Scale {
        let low = if low.is_finite() { low } else { 0.0 };
        let high = if high.is_finite() && high > low { high } else { low + 1.0 };
        Scale { low, high, log: false, from, to }
    }

    /// The same on a logarithmic axis.
    pub fn log((low, high): (f64, f64), (from, to): (f64, f64)) -> Scale {
        let low = if low.is_finite() && low > 0.0 { low } else { 1.0 };
        let high = if high.is_finite() && high > low { high } else { low * 2.0 };
        Scale { low, high, log: true, from, to }
    }

    /// The pixel of a value; not finite where there is none.
    pub fn at(&self, value: f64) -> f64 {
        let map = |v: f64| if self.log { v.ln() } else { v };
        self.from + (self.to - self.from) * (map(value) - map(self.low)) / (map(self.high) - map(self.low))
    }
}

/// Round values within `low..=high`, about `count` of them, and the digits that they need.
pub fn ticks(low: f64, high: f64, count: usize) -> (Vec<f64>, usize) {
    if !(low.is_finite() && high.is_finite() && high > low) {
        return (Vec::new(), 0);
    }
    let rough = (high - low) / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|s| *s >= rough * 0.999).unwrap_or(rough);
    let digits = (-step.log10() - 1e-9).ceil().clamp(0.0, 9.0) as usize;
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    ((first..=last.min(first + 100)).map(|i| i as f64 * step).collect(), digits)
}

/// The powers of two that enclose the lengths, every one or every second if there are many.
pub fn length_ticks(lengths: impl Iterator<Item = u64>) -> Vec<u64> {
    let (low, high) = lengths.filter(|&l| l > 0).fold((u64::MAX, 0), |(a, b), l| (a.min(l), b.max(l)));
    if high == 0 {
        return vec![1, 2];
    }
    let (first, last) = (low.ilog2(), high.next_power_of_two().ilog2().min(62).max(low.ilog2() + 1));
    let every = ((last - first) / 10 + 1) as usize;
    (first..=last).step_by(every).map(|i| 1u64 << i).collect()
}

/// A length on an axis: "512", "1k", "160k", "1M".
pub fn short_tokens(tokens: u64) -> String {
    match tokens {
        t if t >= 1 << 20 && t % (1 << 20) == 0 => format!("{}M", t >> 20),
        t if t >= 1 << 10 && t % (1 << 10) == 0 => format!("{}k", t >> 10),
        t => t.to_string(),
    }
}

/// Where a chart stands in the figure, pixels.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

impl Frame {
    /// Grid lines and labels of the vertical axis, and what it shows.
    pub fn y_axis(&self, canvas: &Canvas, scale: &Scale, ticks: &[(f64, String)], name: &str) -> Result<()> {
        let mut widest: f64 = 0.0;
        for (value, label) in ticks {
            let y = scale.at(*value);
            canvas.line(&[(self.left, y), (self.right, y)], 1.0, GRID.to_rgba())?;
            canvas.text(label, (self.left - 8.0, y), TEXT, Align::Right, false, GREY)?;
            widest = widest.max(text_width(label, TEXT, false));
        }
        let middle = (self.top + self.bottom) / 2.0;
        canvas.text_up(name, (self.left - widest - 24.0, middle), TEXT, INK)
    }

    /// The base line, marks and labels of the horizontal axis, and what it shows.
    pub fn x_axis(&self, canvas: &Canvas, scale: &Scale, ticks: &[(f64, String)], name: &str) -> Result<()> {
        canvas.line(&[(self.left, self.bottom), (self.right, self.bottom)], 1.5, GREY.to_rgba())?;
        for (value, label) in ticks {
            let x = scale.at(*value);
            canvas.line(&[(x, self.bottom), (x, self.bottom + 5.0)], 1.5, GREY.to_rgba())?;
            canvas.text(label, (x, self.bottom + 17.0), TEXT, Align::Centre, false, GREY)?;
        }
        let middle = (self.left + self.right) / 2.0;
        canvas.text(name, (middle, self.bottom + 42.0), TEXT, Align::Centre, false, INK)
    }
}

/// The title at the top left, wrapped; the height that it takes.
pub fn title(canvas: &Canvas, text: &str, width: f64) -> Result<f64> {
    let lines = wrap(text, TITLE, true, width - 40.0);
    for (i, line) in lines.iter().enumerate() {
        canvas.text(line, (20.0, 30.0 + 29.0 * i as f64), TITLE, Align::Left, true, INK)?;
    }
    Ok(22.0 + 29.0 * lines.len() as f64)
}

/// A text in lines no wider than `width` pixels.
pub fn wrap(text: &str, size: f64, bold: bool, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), size, bold) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Moves heights apart to at least `gap`, near to where they were, within `low..high`. In the order given.
pub fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut placed = wanted.to_vec();
    let mut above = low - gap;
    for &i in &order {
        placed[i] = placed[i].max(above + gap);
        above = placed[i];
    }
    let mut below = high + gap;
    for &i in order.iter().rev() {
        placed[i] = placed[i].min(below - gap);
        below = placed[i];
    }
    placed
}

/// A label on a patch of white, so that lines behind it don't cross the letters.
pub fn label(canvas: &Canvas, text: &str, at: (f64, f64), align: Align, bold: bool, colour: RGBColor) -> Result<()> {
    let width = text_width(text, TEXT, bold);
    let left = match align {
        Align::Left => at.0,
        Align::Centre => at.0 - width / 2.0,
        Align::Right => at.0 - width,
    };
    let white = RGBColor(255, 255, 255).mix(0.85);
    canvas.rect((left - 2.0, at.1 - 10.0), (left + width + 2.0, at.1 + 10.0), white)?;
    canvas.text(text, at, TEXT, align, bold, colour)
}
