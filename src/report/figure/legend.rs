//! The legend of categories.

use anyhow::Result;
use plotters::style::Color;

use super::axes::TEXT;
use super::canvas::{Align, Canvas, INK, text_width};
use super::rows::category_colour;
use crate::memory::category::Category;

/// Distance between lines, pixels.
const LINE: f64 = 26.0;

/// Line and left edge of each entry.
fn places(present: &[Category], width: f64) -> Vec<(usize, f64)> {
    let (mut line, mut x) = (0, 0.0);
    let mut places = Vec::new();
    for category in present {
        let wide = 24.0 + text_width(category.label(), TEXT, false) + 22.0;
        if x > 0.0 && x + wide > width {
            (line, x) = (line + 1, 0.0);
        }
        places.push((line, x));
        x += wide;
    }
    places
}

/// Height of the legend in pixels.
pub fn height(present: &[Category], width: f64) -> f64 {
    LINE * places(present, width).last().map_or(0.0, |p| p.0 as f64 + 1.0)
}

/// Draws the legend at its top left corner: bottom of the stack first.
pub fn categories(canvas: &Canvas, present: &[Category], at: (f64, f64), width: f64) -> Result<()> {
    for (category, (line, x)) in present.iter().zip(places(present, width)) {
        let (x, y) = (at.0 + x, at.1 + LINE * line as f64);
        canvas.rect((x, y - 7.0), (x + 17.0, y + 8.0), category_colour(*category).to_rgba())?;
        canvas.text(category.label(), (x + 24.0, y), TEXT, Align::Left, false, INK)?;
    }
    Ok(())
}
