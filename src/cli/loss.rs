//! `ablation loss`: the loss of a model by position in one sequence, without training.

use std::path::PathBuf;

use anyhow::Result;

use super::common::{open_model, tokenizer};
use super::study::finish;
use super::toggles::YarnOptions;
use crate::bad_input;
use crate::ladder::folder::Folder;
use crate::study::run::Ready;
use crate::study::{Setting, SettingRope, Source, Study};
use crate::units::parse_tokens;

/// Measure a model's loss by position in one long sequence, without training
///
/// Prints a table and leaves a folder with the records, a figure and a page.
#[derive(Debug, clap::Args)]
pub struct Loss {
    /// An id on the Hugging Face hub, a folder with config.json and safetensors, or a GGUF file
    #[arg(long, value_name = "MODEL")]
    model: String,
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
    /// The folder for record, figure and page [default: the first free of ablation-loss, ablation-loss-2 …;
    /// with --json none]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object in place of the table
    #[arg(long)]
    json: bool,
}

fn study(command: &Loss) -> Result<Study> {
    let source = match (&command.tokens, &command.text) {
        (Some(path), _) => Source::Tokens(path.clone()),
        (None, Some(path)) => Source::Path { path: path.clone(), offset: command.offset },
        (None, None) => bad_input!("give a text with --text, or token ids with --tokens"),
    };
    let original = command.yarn.original.as_deref().map(parse_tokens).transpose()?;
    let (name, rope) = match command.yarn.yarn {
        Some(factor) => (format!("YaRN {factor}"), SettingRope::Yarn { factor, original }),
        None => ("the model's own positions".to_string(), SettingRope::Own),
    };
    Ok(Study {
        name: "loss".to_string(),
        title: "Loss by position".to_string(),
        description: String::new(),
        model: command.model.clone(),
        length: command.length.as_deref().map(parse_tokens).transpose()?,
        source,
        settings: vec![Setting { name, rope }],
    })
}

/// Runs the command.
pub fn loss(command: &Loss) -> Result<u8> {
    let ready = Ready::new(study(command)?, open_model(&command.model)?, &tokenizer)?;
    let kept;
    let folder = match (&command.out, command.json) {
        (Some(out), _) => Folder::empty(out)?,
        (None, false) => Folder::numbered("loss")?,
        // The record goes the same way, and is let go.
        (None, true) => {
            kept = tempfile()?;
            Folder::empty(&kept.0)?
        }
    };
    finish(ready, folder, Vec::new(), command.json)
}

/// A folder that goes when it is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tempfile() -> Result<Temporary> {
    let path = std::env::temp_dir().join(format!("ablation-loss-{}", std::process::id()));
    std::fs::create_dir_all(&path)?;
    Ok(Temporary(path))
}
