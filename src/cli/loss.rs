//! `ablation loss`: the loss of a model by position in one sequence, without training.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use anyhow::Result;

use super::common::tokenizer;
use super::toggles::{YarnOptions, not_covered};
use crate::bad_input;
use crate::data::{Corpus, given};
use crate::model::checkpoint::Checkpoint;
use crate::model::rope::Rope;
use crate::notice;
use crate::progress;
use crate::train::bands::{Band, bands};
use crate::train::evaluate::evaluate;
use crate::train::toggles::{Loss as LossToggle, Toggles};
use crate::train::world::Row;
use crate::units::{format_tokens, parse_tokens};

/// Measure a model's loss by position in one long sequence, without training
#[derive(Debug, clap::Args)]
pub struct Loss {
    /// A folder with config.json and safetensors, or a GGUF file
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// A text file (UTF-8), or a folder of .txt files, joined in the order of their names
    #[arg(long, value_name = "PATH", conflicts_with = "tokens", required_unless_present = "tokens")]
    text: Option<PathBuf>,
    /// Characters of the text to leave out at its start
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "tokens")]
    offset: usize,
    /// Token ids in place of a text: safetensors with input_ids and, if there, labels; the first row counts
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Tokens of the sequence, such as 16384 or 16k [default: all that are there]
    #[arg(long, value_name = "TOKENS")]
    length: Option<String>,
    #[command(flatten)]
    yarn: YarnOptions,
    /// Print one JSON object in place of the table
    #[arg(long)]
    json: bool,
}

fn row(command: &Loss, model: &Checkpoint) -> Result<Row> {
    let length = command.length.as_deref().map(parse_tokens).transpose()?.map(|l| l as usize);
    let mut row = match (&command.tokens, &command.text) {
        (Some(path), _) => given::read(path, model.config.vocab_size)?.swap_remove(0),
        (None, Some(path)) => {
            let tokenizer = tokenizer(model)?;
            Row { ids: Corpus::path(path, command.offset, &tokenizer, length)?.ids, labels: None }
        }
        (None, None) => bad_input!("give a text with --text, or token ids with --tokens"),
    };
    let length = length.unwrap_or(row.ids.len());
    if row.ids.len() < length {
        bad_input!(
            "{} tokens are there, {length} were asked for: give a longer text or a shorter --length",
            row.ids.len()
        );
    }
    if length < 2 {
        bad_input!("a sequence of {length} tokens has no target: give at least 2");
    }
    row.ids.truncate(length);
    if let Some(labels) = &mut row.labels {
        labels.truncate(length);
    }
    Ok(row)
}

/// Entropy of the tokens by their frequency alone, nats: what a model without context gets at best.
fn unigram_entropy(ids: &[u32]) -> f64 {
    let mut counts = std::collections::HashMap::new();
    ids.iter().for_each(|id| *counts.entry(id).or_insert(0u64) += 1);
    let share = |count: &u64| *count as f64 / ids.len() as f64;
    -counts.values().map(|c| share(c) * share(c).ln()).sum::<f64>()
}

/// Mean over the bands of an eighth of the sequence.
fn eighth(bands: &[Band]) -> Option<f64> {
    let targets: usize = bands.iter().map(|b| b.targets).sum();
    let sum: f64 = bands.iter().filter_map(|b| Some(b.loss? * b.targets as f64)).sum();
    (targets > 0).then(|| sum / targets as f64)
}

/// A loss that grows by more than this from the first eighth to the last isn't the text's doing, nats.
const CLIMB: f64 = 0.5;

/// What a reader of the table should know.
fn judged(rope: &Rope, model: &Checkpoint, first: Option<f64>, last: Option<f64>, length: u64) -> Option<String> {
    let climbs = first.zip(last).is_some_and(|(first, last)| last > first + CLIMB);
    match (climbs, not_covered(rope, &model.config, length)) {
        (true, Some(cause)) => Some(format!("the loss climbs along the positions: {cause}")),
        (true, None) => {
            Some("the loss climbs along the positions: check the rope's factor and original length".to_string())
        }
        (false, cause) => cause,
    }
}

/// Runs the command.
pub fn loss(command: &Loss) -> Result<u8> {
    let model = Checkpoint::open(&command.model)?;
    let (rope, row) = (command.yarn.rope(&model.config, &model.rope)?, row(command, &model)?);
    let chunked = LossToggle::Chunked { rows: 256 };
    let toggles = Toggles { loss: chunked, tile: 512, ..Toggles::plain(rope.clone()) };
    let layers = model.config.num_hidden_layers as u64;
    let bar = progress::bar(layers, "{bar:30} {pos}/{len} layers  {elapsed} gone, {eta} to go");
    let never = AtomicBool::new(false);
    let start = std::time::Instant::now();
    let evaluation =
        evaluate(&model.config, &toggles, &model, &row, &never, &|layer| bar.set_position(layer as u64 + 1))?;
    bar.finish_and_clear();

    let bands = bands(&evaluation.losses, |i| evaluation.counts(i));
    let part = bands.len().div_ceil(8);
    let (first, last) = (eighth(&bands[..part]), eighth(&bands[bands.len() - part..]));
    let (entropy, seconds) = (unigram_entropy(&row.ids), start.elapsed().as_secs_f64());
    let length = row.ids.len() as u64;
    judged(&rope, &model, first, last, length).iter().for_each(|said| notice(&format!("note: {said}")));
    if command.json {
        let all = serde_json::json!({
            "model": model.config.name, "length": length, "targets": evaluation.valid_targets,
            "yarn_factor": command.yarn.yarn, "loss": evaluation.loss, "first_eighth": first, "last_eighth": last,
            "unigram_entropy": entropy, "bands": bands, "seconds": seconds,
        });
        super::say(&serde_json::to_string_pretty(&all)?)?;
        return Ok(0);
    }
    let number = |loss: Option<f64>| loss.map_or("-".to_string(), |l| format!("{l:.4}"));
    let mut text = format!("{:>12}  {:>12}  {:>10}\n", "from token", "to", "loss, nats");
    for band in &bands {
        text.push_str(&format!(
            "{:>12}  {:>12}  {:>10}\n",
            format_tokens(band.start as u64),
            format_tokens(band.end as u64),
            number(band.loss)
        ));
    }
    text.push_str(&format!(
        "\nmean {:.4} over {} targets; first eighth {}, last eighth {}; unigram entropy of the same tokens {entropy:.2}, \
         ln(vocabulary) {:.2} ({seconds:.0} s)",
        evaluation.loss,
        format_tokens(evaluation.valid_targets),
        number(first),
        number(last),
        (model.config.vocab_size as f64).ln()
    ));
    super::say(&text)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_of_frequencies() {
        assert_eq!(unigram_entropy(&[7; 10]), 0.0);
        assert!((unigram_entropy(&[1, 2, 3, 4]) - 4f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn an_eighth_is_the_mean_over_its_targets() {
        let bands = bands(&[2.0; 32], |i| i < 31);
        assert_eq!((bands.len(), bands[0].targets, bands[15].targets), (16, 2, 1));
        assert_eq!(eighth(&bands[..2]), Some(2.0));
    }
}
