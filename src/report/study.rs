//! A study's page: what each setting's loss is along the positions.

use std::path::Path;

use anyhow::Result;

use super::document::{Block, Table, heading, paragraph};
use super::figure::losses::{by_setting, draw, finding};
use super::{Report, write_pages};
use crate::columns::columns;
use crate::record::losses::{LossBand, read_losses};
use crate::units::format_tokens;

fn number(loss: Option<f64>) -> String {
    loss.map_or("-".to_string(), |l| format!("{l:.4}"))
}

fn rope(b: &LossBand) -> String {
    match (b.yarn_factor, b.yarn_original_tokens) {
        (Some(factor), Some(original)) => format!("YaRN, factor {factor} over {}", format_tokens(original)),
        _ => "the model's own".to_string(),
    }
}

/// A row a setting.
fn settings_rows(bands: &[LossBand]) -> Vec<Vec<String>> {
    let head = ["setting", "positions", "tokens", "loss", "first eighth", "last eighth", "s"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    for setting in by_setting(bands) {
        let b = setting[0];
        rows.push(vec![
            b.setting.clone(),
            rope(b),
            format_tokens(b.length_tokens),
            format!("{:.4}", b.mean_loss),
            number(b.first_eighth_loss),
            number(b.last_eighth_loss),
            format!("{:.0}", b.seconds),
        ]);
    }
    rows
}

/// A row a band, a column a setting.
fn bands_rows(bands: &[LossBand]) -> Vec<Vec<String>> {
    let settings = by_setting(bands);
    let mut head = vec!["from token".to_string(), "to".to_string()];
    head.extend(settings.iter().map(|s| s[0].setting.clone()));
    let mut rows = vec![head];
    for (i, first) in settings.first().into_iter().flatten().enumerate() {
        let mut row = vec![format_tokens(first.start_token), format_tokens(first.end_token)];
        row.extend(settings.iter().map(|s| number(s.get(i).and_then(|b| b.band_loss))));
        rows.push(row);
    }
    rows
}

fn table(rows: Vec<Vec<String>>) -> Block {
    let mut rows = rows.into_iter();
    Block::Table(Table { head: rows.next().unwrap_or_default(), rows: rows.collect() })
}

fn provenance(b: &LossBand) -> Block {
    let mut rows = vec![vec!["what".to_string(), "value".to_string()]];
    let mut row = |what: &str, value: String| rows.push(vec![what.to_string(), value]);
    row("program", format!("ablation {}, revision {}", b.program_version, b.git_revision));
    if let Some(path) = &b.store_path {
        row("built by Nix", path.clone());
    }
    row("device", format!("{}: {}, {} cores", b.device, b.cpu, b.cores));
    row("host", b.host_name.clone());
    let vocabulary = format_tokens(u64::from(b.vocabulary));
    row("model", format!("{}: {} parameters, vocabulary {vocabulary}", b.model, format_tokens(b.parameters)));
    let characters = b.characters.map_or(String::new(), |c| format!(", {} characters", format_tokens(c)));
    row("text", format!("{}: {} tokens{characters}", b.text, format_tokens(b.length_tokens)));
    row("token ids, SHA-256", b.tokens_sha256.clone());
    table(rows)
}

fn blocks(bands: &[LossBand], figure: Option<&super::figure::Figure>) -> Vec<Block> {
    let Some(first) = bands.first() else { return vec![heading(1, "No losses")] };
    let mut blocks = vec![heading(1, first.title.clone()), paragraph(finding(bands) + ".")];
    if let Some(figure) = figure {
        blocks.push(Block::Figure { name: figure.name.clone(), title: figure.title.clone() });
    }
    blocks.push(table(settings_rows(bands)));
    blocks.push(paragraph(format!(
        "Losses are nats a token; the tokens' own entropy, by their frequency in this text alone, is {:.2}, and that of \
         guessing ln(vocabulary) = {:.2}. The loss at a position depends on nothing after it: what stands here up to a \
         position is what a sequence of that length has.",
        first.unigram_entropy,
        f64::from(first.vocabulary.max(1)).ln()
    )));
    if by_setting(bands).len() > 1 {
        blocks.push(paragraph(
            "Hugging Face TRL's guide “Training Beyond 1M Tokens” shows the same for Qwen3-4B at 163,840 tokens, four times \
             its own length: over the last 20k tokens 7.3 without scaling, above its text's unigram entropy of 6.45, and \
             2.8 with YaRN. Those are the guide's figures, of another model and text.",
        ));
    }
    blocks.push(heading(2, "By position"));
    blocks.push(table(bands_rows(bands)));
    blocks.push(heading(2, "To run it again"));
    blocks.push(provenance(first));
    blocks.push(paragraph("Save the study below as study.toml, then:"));
    blocks.push(Block::Pre("ablation run study.toml --out DIR\nablation report DIR".to_string()));
    blocks.push(Block::Pre(first.study_toml.clone()));
    blocks
}

/// Renders a study's figure and page.
pub fn render(dir: &Path) -> Result<Report> {
    let bands = read_losses(dir)?;
    let figure = draw(&bands)?;
    let title = bands.first().map_or("ablation", |b| &b.title);
    let page = write_pages(dir, title, &blocks(&bands, figure.as_ref()), figure.as_slice())?;
    let summary = format!("{}\n{}\n\nThe page: {}", columns(&settings_rows(&bands)), finding(&bands), page.display());
    Ok(Report { summary, page })
}

/// The losses by position for a terminal.
pub fn by_position(bands: &[LossBand]) -> String {
    columns(&bands_rows(bands))
}
