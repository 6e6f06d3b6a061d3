//! Names at the ends of lines, moved apart.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::axes::{Frame, TEXT, label};
use super::canvas::{Align, Canvas, text_width};

/// Height that a name takes, pixels.
const TALL: f64 = 21.0;

/// A name for the line that ends at a point.
pub struct End {
    pub text: String,
    pub at: (f64, f64),
    pub colour: RGBColor,
}

/// Points along lines, a few pixels apart.
fn along(lines: &[Vec<(f64, f64)>]) -> Vec<(f64, f64)> {
    let pairs = lines.iter().flat_map(|l| l.windows(2));
    let fine = pairs.flat_map(|pair| {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let steps = ((x1 - x0).hypot(y1 - y0) / 4.0).clamp(1.0, 500.0) as u32;
        (0..=steps).map(move |i| f64::from(i) / f64::from(steps)).map(move |t| (x0 + (x1 - x0) * t, y0 + (y1 - y0) * t))
    });
    fine.collect()
}

/// Writes each name right of its line's end, or as near above or below as there is room beside `lines`.
pub fn names(canvas: &Canvas, ends: &[End], lines: &[Vec<(f64, f64)>], frame: &Frame) -> Result<()> {
    let drawn = along(lines);
    let mut order: Vec<&End> = ends.iter().filter(|e| e.at.0.is_finite() && e.at.1.is_finite()).collect();
    order.sort_by(|a, b| a.at.1.total_cmp(&b.at.1));
    // Left edge, right edge and middle height of the names that stand.
    let mut placed: Vec<(f64, f64, f64)> = Vec::new();
    for end in order {
        let (left, right) = (end.at.0 + 14.0, end.at.0 + 16.0 + text_width(&end.text, TEXT, true));
        let free = |y: f64| {
            let apart = |p: &(f64, f64, f64)| right < p.0 || left > p.1 || (y - p.2).abs() >= TALL;
            y > frame.top - 12.0 && y < frame.bottom - 8.0 && placed.iter().all(apart)
        };
        let clear = |y: f64| !drawn.iter().any(|p| p.0 > left - 4.0 && p.0 < right + 2.0 && (p.1 - y).abs() < 14.0);
        let near = || (0..60).map(|i| end.at.1 + 4.0 * f64::from((i + 1) / 2) * if i % 2 == 1 { 1.0 } else { -1.0 });
        let y = near().find(|&y| free(y) && clear(y)).or_else(|| near().find(|&y| free(y))).unwrap_or(end.at.1);
        placed.push((left, right, y));
        if (y - end.at.1).abs() > 6.0 {
            canvas.line(&[end.at, (left - 2.0, y)], 1.0, end.colour.to_rgba())?;
        }
        label(canvas, &end.text, (left, y), Align::Left, true, end.colour)?;
    }
    Ok(())
}
