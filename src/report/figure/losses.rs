//! "losses": a study's loss by position, a line a setting.

use anyhow::Result;
use plotters::style::{Color, RGBColor};

use super::Figure;
use super::axes::{Frame, Scale, label, ticks, title};
use super::canvas::{Align, Canvas, GREY, figure};
use super::ends::{End, names};
use super::rows::{colour, join};
use crate::record::losses::LossBand;
use crate::units::format_tokens;

const SIZE: (u32, u32) = (1000, 620);
/// The vertical axis spans at least this, nats: small differences shall look small.
const LEAST_SPAN: f64 = 0.5;

/// The bands of each setting, in the order of the study.
pub fn by_setting(bands: &[LossBand]) -> Vec<Vec<&LossBand>> {
    let mut settings: Vec<Vec<&LossBand>> = Vec::new();
    for band in bands {
        match settings.iter_mut().find(|s| s[0].setting_number == band.setting_number) {
            Some(setting) => setting.push(band),
            None => settings.push(vec![band]),
        }
    }
    settings
}

/// What the losses show, in a sentence.
pub fn finding(bands: &[LossBand]) -> String {
    let settings = by_setting(bands);
    let Some(first) = settings.first().map(|s| s[0]) else { return "No losses were measured".to_string() };
    let tokens = format_tokens(first.length_tokens);
    let number = |loss: Option<f64>| loss.map_or("none".to_string(), |l| format!("{l:.2}"));
    if settings.len() == 1 {
        return format!(
            "Loss of {} by position in {tokens} tokens: {} nats in the first eighth, {} in the last",
            first.model,
            number(first.first_eighth_loss),
            number(first.last_eighth_loss)
        );
    }
    let last: Vec<String> =
        settings.iter().map(|s| format!("{} with {}", number(s[0].last_eighth_loss), s[0].setting)).collect();
    let last = join(&last.iter().map(String::as_str).collect::<Vec<_>>());
    match first.length_tokens > first.own_tokens {
        true => format!(
            "{} beyond its {} tokens: in the last eighth of {tokens} the loss is {last}, nats a token",
            first.model,
            format_tokens(first.own_tokens)
        ),
        false => format!("{}: in the last eighth of {tokens} tokens the loss is {last}, nats a token", first.model),
    }
}

/// The figure; none without two bands of a setting.
pub fn draw(bands: &[LossBand]) -> Result<Option<Figure>> {
    let mut settings = by_setting(bands);
    settings.iter_mut().for_each(|s| s.retain(|b| b.band_loss.is_some_and(f64::is_finite)));
    settings.retain(|s| s.len() > 1);
    if settings.is_empty() {
        return Ok(None);
    }
    let text = finding(bands);
    figure("losses", text.clone(), SIZE, |canvas| chart(canvas, &settings, &text)).map(Some)
}

fn loss(band: &LossBand) -> f64 {
    band.band_loss.unwrap_or(f64::NAN)
}

fn chart(canvas: &Canvas, settings: &[Vec<&LossBand>], text: &str) -> Result<()> {
    let width = f64::from(SIZE.0);
    let top = title(canvas, text, width)?;
    let frame = Frame { left: 96.0, right: width - 130.0, top: top + 22.0, bottom: f64::from(SIZE.1) - 66.0 };
    let all = || settings.iter().flatten();
    let entropy = settings[0][0].unigram_entropy;
    let longest = all().map(|b| b.end_token).max().unwrap_or(1) as f64;
    let low = all().map(|b| loss(b)).fold(entropy, f64::min);
    let high = all().map(|b| loss(b)).fold(entropy, f64::max);
    let half = f64::max((high - low) * 0.55, LEAST_SPAN / 2.0);
    let (low, high) = ((low + high) / 2.0 - half, (low + high) / 2.0 + half);
    let x = Scale::linear((0.0, longest), (frame.left, frame.right));
    let y = Scale::linear((low, high), (frame.bottom, frame.top));
    let (values, digits) = ticks(low, high, 6);
    let values: Vec<_> = values.into_iter().map(|v| (v, format!("{v:.digits$}"))).collect();
    frame.y_axis(canvas, &y, &values, "mean loss of a band, nats a token (not from 0)")?;
    // Lengths are powers of two: so are these steps.
    let step = (longest / 8.0).log2().ceil().max(0.0).exp2();
    let values: Vec<_> =
        (0..=8).map(|i| f64::from(i) * step).filter(|v| *v <= longest).map(|v| (v, format_tokens(v as u64))).collect();
    frame.x_axis(canvas, &x, &values, "position in the sequence, tokens")?;

    let at = y.at(entropy);
    canvas.dashed(&[(frame.left, at), (frame.right, at)], 1.2, GREY.to_rgba(), 3.0, 4.0)?;
    let said = format!("unigram entropy of the text, {entropy:.2}");
    label(canvas, &said, (frame.left + 8.0, at - 13.0), Align::Left, false, GREY)?;
    let own = settings[0][0].own_tokens as f64;
    if own < longest {
        let at = x.at(own);
        canvas.dashed(&[(at, frame.top), (at, frame.bottom)], 1.2, GREY.to_rgba(), 3.0, 4.0)?;
        let said = format!("the model's own length, {}", format_tokens(own as u64));
        let side = if own < longest / 2.0 { (8.0, Align::Left) } else { (-8.0, Align::Right) };
        label(canvas, &said, (at + side.0, frame.top + 8.0), side.1, false, GREY)?;
    }
    let (mut ends, mut drawn) = (Vec::new(), Vec::new());
    for setting in settings {
        let of: RGBColor = colour(setting[0].setting_number as usize);
        let middle = |b: &LossBand| (b.start_token as f64 + b.end_token as f64) / 2.0;
        let points: Vec<_> = setting.iter().map(|b| (x.at(middle(b)), y.at(loss(b)))).collect();
        canvas.line(&points, 2.5, of.to_rgba())?;
        for &at in &points {
            canvas.circle(at, 4.0, of.to_rgba())?;
        }
        ends.push(End { text: setting[0].setting.clone(), at: points[points.len() - 1], colour: of });
        drawn.push(points);
    }
    names(canvas, &ends, &drawn, &frame)
}
