//! A drawing surface: plotters' SVG backend, then usvg turns text into paths and resvg makes the PNG.

use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow};
use plotters::coord::Shift;
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{FontTransform, register_font};
use resvg::{tiny_skia, usvg};

use super::Figure;

static NORMAL: &[u8] = include_bytes!("../fonts/DejaVuSans.ttf");
static BOLD: &[u8] = include_bytes!("../fonts/DejaVuSans-Bold.ttf");

/// Backend units in a pixel: plotters' coordinates are whole numbers.
const FINE: f64 = 8.0;
/// plotters' font size over the font size that it writes.
const FONT_HEIGHT: f64 = 1.24;
/// Height of DejaVu Sans (ascent and descent) in ems: what plotters takes its size to be when it measures.
const MEASURED_HEIGHT: f64 = 1.164;
/// Pixels of the PNG per pixel of the figure.
const PNG_SCALE: f32 = 2.0;

/// Colour of text and axes.
pub const INK: RGBColor = RGBColor(34, 34, 34);
/// Colour of secondary text.
pub const GREY: RGBColor = RGBColor(95, 95, 95);
/// Colour of grid lines.
pub const GRID: RGBColor = RGBColor(226, 226, 226);

/// Where a text stands relative to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Centre,
    Right,
}

/// A surface in pixels, origin top left. Points that aren't finite are left out.
pub struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

fn point((x, y): (f64, f64)) -> Option<(i32, i32)> {
    let fine = |v: f64| (v * FINE).round().clamp(-1e6, 1e6) as i32;
    (x.is_finite() && y.is_finite()).then(|| (fine(x), fine(y)))
}

fn style(size: f64, bold: bool, colour: RGBColor) -> TextStyle<'static> {
    let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
    ("sans-serif", size * FONT_HEIGHT * FINE, weight).into_font().color(&colour)
}

/// Width of a text in pixels.
pub fn text_width(text: &str, size: f64, bold: bool) -> f64 {
    let measured = style(size, bold, INK).font.layout_box(text).map_or(0, |(a, b)| b.0 - a.0);
    f64::from(measured) / FINE / FONT_HEIGHT * MEASURED_HEIGHT
}

impl<'a> Canvas<'a> {
    fn put<E>(&self, element: &E) -> Result<()>
    where
        for<'b> &'b E: PointCollection<'b, (i32, i32)>,
        E: Drawable<SVGBackend<'a>>,
    {
        self.area.draw(element).map_err(|e| anyhow!("drawing: {e}"))
    }

    /// A line through the points.
    pub fn line(&self, points: &[(f64, f64)], width: f64, colour: RGBAColor) -> Result<()> {
        let points: Vec<_> = points.iter().copied().filter_map(point).collect();
        if points.len() < 2 {
            return Ok(());
        }
        self.put(&PathElement::new(points, colour.stroke_width((width * FINE).round() as u32)))
    }

    /// A dashed line through the points: `dash` pixels drawn, `gap` pixels not.
    pub fn dashed(&self, points: &[(f64, f64)], width: f64, colour: RGBAColor, dash: f64, gap: f64) -> Result<()> {
        let mut at = 0.0;
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let length = (x1 - x0).hypot(y1 - y0);
            if !(length.is_finite() && length > 0.0 && length < 1e5) {
                continue;
            }
            let on = |d: f64| (x0 + (x1 - x0) * d / length, y0 + (y1 - y0) * d / length);
            let mut d = 0.0;
            while d < length {
                let phase = at % (dash + gap);
                let drawn = phase < dash;
                let step = (if drawn { dash } else { dash + gap } - phase).clamp(0.01, length - d + 0.01);
                if drawn {
                    self.line(&[on(d), on((d + step).min(length))], width, colour)?;
                }
                d += step;
                at += step;
            }
        }
        Ok(())
    }

    /// A filled polygon.
    pub fn polygon(&self, points: &[(f64, f64)], colour: RGBAColor) -> Result<()> {
        let points: Vec<_> = points.iter().copied().filter_map(point).collect();
        if points.len() < 3 { Ok(()) } else { self.put(&Polygon::new(points, colour.filled())) }
    }

    /// A filled rectangle between two corners.
    pub fn rect(&self, a: (f64, f64), b: (f64, f64), colour: RGBAColor) -> Result<()> {
        self.polygon(&[a, (b.0, a.1), b, (a.0, b.1)], colour)
    }

    /// A filled circle.
    pub fn circle(&self, centre: (f64, f64), radius: f64, colour: RGBAColor) -> Result<()> {
        let Some(centre) = point(centre) else { return Ok(()) };
        self.put(&Circle::new(centre, (radius * FINE).round() as i32, colour.filled()))
    }

    /// A text whose middle line is at the point's height.
    pub fn text(
        &self,
        text: &str,
        at: (f64, f64),
        size: f64,
        align: Align,
        bold: bool,
        colour: RGBColor,
    ) -> Result<()> {
        let h = match align {
            Align::Left => HPos::Left,
            Align::Centre => HPos::Center,
            Align::Right => HPos::Right,
        };
        let Some(at) = point(at) else { return Ok(()) };
        self.put(&Text::new(text.to_owned(), at, style(size, bold, colour).pos(Pos::new(h, VPos::Center))))
    }

    /// A text that reads upwards, centred at the point.
    pub fn text_up(&self, text: &str, at: (f64, f64), size: f64, colour: RGBColor) -> Result<()> {
        let Some(at) = point(at) else { return Ok(()) };
        let style = style(size, false, colour).transform(FontTransform::Rotate270);
        self.put(&Text::new(text.to_owned(), at, style.pos(Pos::new(HPos::Center, VPos::Center))))
    }
}

/// The fonts, for plotters (once) and for usvg.
fn fonts() -> Arc<usvg::fontdb::Database> {
    static FONTS: OnceLock<Arc<usvg::fontdb::Database>> = OnceLock::new();
    let load = || {
        // The fonts are part of the program; should plotters not take them, drawing says so.
        let _ = register_font("sans-serif", FontStyle::Normal, NORMAL);
        let _ = register_font("sans-serif", FontStyle::Bold, BOLD);
        let mut fonts = usvg::fontdb::Database::new();
        fonts.load_font_data(NORMAL.to_vec());
        fonts.load_font_data(BOLD.to_vec());
        fonts.set_sans_serif_family("DejaVu Sans");
        Arc::new(fonts)
    };
    FONTS.get_or_init(load).clone()
}

/// Draws a figure of `width` × `height` pixels on white.
pub fn figure(
    name: &str,
    title: String,
    (width, height): (u32, u32),
    draw: impl FnOnce(&Canvas) -> Result<()>,
) -> Result<Figure> {
    let fontdb = fonts();
    let mut drawn = String::new();
    {
        let fine = (width * FINE as u32, height * FINE as u32);
        let canvas = Canvas { area: SVGBackend::with_string(&mut drawn, fine).into_drawing_area() };
        canvas.area.fill(&WHITE).map_err(|e| anyhow!("drawing: {e}"))?;
        draw(&canvas).with_context(|| format!("figure `{name}`"))?;
        canvas.area.present().map_err(|e| anyhow!("drawing: {e}"))?;
    }
    let body = drawn.find("viewBox").context("an SVG without a viewBox")?;
    let sized = format!("<svg width=\"{width}\" height=\"{height}\" {}", &drawn[body..]);
    let options = usvg::Options { fontdb, ..Default::default() };
    let tree = usvg::Tree::from_str(&sized, &options).with_context(|| format!("figure `{name}`"))?;

    let size = |pixels: u32| (pixels as f32 * PNG_SCALE) as u32;
    let mut pixels = tiny_skia::Pixmap::new(size(width), size(height)).context("a figure without pixels")?;
    pixels.fill(tiny_skia::Color::WHITE);
    resvg::render(&tree, tiny_skia::Transform::from_scale(PNG_SCALE, PNG_SCALE), &mut pixels.as_mut());
    let png = pixels.encode_png().with_context(|| format!("figure `{name}`"))?;

    let write = usvg::WriteOptions {
        id_prefix: Some(format!("{name}-")),
        coordinates_precision: 2,
        transforms_precision: 5,
        indent: usvg::Indent::None,
        ..Default::default()
    };
    let svg = tree.to_string(&write);
    let escaped = title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let svg = svg.replacen('>', &format!("><title>{escaped}</title>"), 1);
    Ok(Figure { name: name.to_owned(), title, svg, png })
}
