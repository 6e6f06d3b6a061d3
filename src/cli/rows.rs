//! The rows that `ablation train` trains on: from texts, a dataset, or token ids as given.

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;

use super::common::tokenizer;
use crate::bad_input;
use crate::data::rows::{Shape, TextRow, characters_for, rows};
use crate::data::{cache, documents, given};
use crate::hash::sha256_of_ids;
use crate::hub::{Hub, is_id};
use crate::model::checkpoint::Checkpoint;
use crate::notice;
use crate::train::world::Row;
use crate::units::{format_tokens, parse_tokens};

/// What a model is trained on.
#[derive(Debug, clap::Args)]
pub struct RowOptions {
    /// A text file (UTF-8), or a folder of .txt or of .parquet files, in the order of their names
    #[arg(long, value_name = "PATH", conflicts_with = "tokens", required_unless_present_any = ["tokens", "dataset"])]
    text: Option<PathBuf>,
    /// A dataset of texts on the Hugging Face hub, such as emozilla/pg19; or Parquet files, as --text
    #[arg(long, value_name = "ID", conflicts_with_all = ["tokens", "text"])]
    dataset: Option<String>,
    /// The dataset's split
    #[arg(long, value_name = "NAME", default_value = "train", requires = "dataset")]
    split: String,
    /// Token ids in place of a text: safetensors with input_ids and, if there, labels
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Tokens of a row, such as 16384 or 1M [default with --tokens: that of its rows]
    #[arg(long, value_name = "TOKENS", required_unless_present = "tokens")]
    length: Option<String>,
    /// Rows to train on, at most [default: 4; with --tokens all]
    #[arg(long, value_name = "N")]
    rows: Option<usize>,
    /// A row takes book after book until it has this many characters [default: 6,000,000 for
    /// 1M tokens, and in proportion]
    #[arg(long, value_name = "N", conflicts_with = "tokens")]
    row_characters: Option<usize>,
}

/// Rows of a text where none are asked for: the guide's.
const ROWS: usize = 4;

/// What the rows are made of, for the record.
#[derive(Debug, Serialize)]
pub struct Data {
    /// The path or the id.
    pub source: String,
    pub length_tokens: usize,
    pub rows: Vec<RowRecord>,
}

/// One row, for the record.
#[derive(Debug, Serialize)]
pub struct RowRecord {
    /// The documents that were joined; empty where ids were given.
    pub documents: Vec<String>,
    /// Characters of these documents, and of those that the ids stand for.
    pub joined_characters: Option<u64>,
    pub characters: Option<u64>,
    pub tokens: usize,
    /// Of the ids, little-endian u32, in hex.
    pub ids_sha256: String,
}

fn of_text(text: TextRow) -> (Row, RowRecord) {
    let record = RowRecord {
        joined_characters: Some(text.joined_characters),
        characters: Some(text.characters),
        tokens: text.ids.len(),
        ids_sha256: sha256_of_ids(&text.ids),
        documents: text.documents,
    };
    (Row { ids: text.ids, labels: None }, record)
}

fn of_ids(row: Row) -> (Row, RowRecord) {
    let (tokens, ids_sha256) = (row.ids.len(), sha256_of_ids(&row.ids));
    (row, RowRecord { documents: Vec::new(), joined_characters: None, characters: None, tokens, ids_sha256 })
}

impl RowOptions {
    /// The rows, all of one length, and what they are made of.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if there is not one row, fewer than were asked for of
    /// given ids, or what is wrong with a file.
    pub fn rows(&self, model: &Checkpoint) -> Result<(Vec<Row>, Data)> {
        let length = self.length.as_deref().map(parse_tokens).transpose()?.map(|l| l as usize);
        if self.rows == Some(0) || length.is_some_and(|l| l < 2) {
            bad_input!("give at least one row, of at least 2 tokens");
        }
        let (source, rows) = match (&self.tokens, length) {
            (Some(path), length) => {
                let mut rows = given::read(path, model.config.vocab_size)?;
                if length.is_some_and(|length| rows.iter().any(|r| r.ids.len() != length)) {
                    bad_input!("{}: its rows have {} tokens: leave --length away", path.display(), rows[0].ids.len());
                }
                if let Some(asked) = self.rows.filter(|asked| *asked > rows.len()) {
                    bad_input!("{}: {} rows are there, {asked} were asked for", path.display(), rows.len());
                }
                rows.truncate(self.rows.unwrap_or(usize::MAX));
                (path.display().to_string(), rows.into_iter().map(of_ids).collect::<Vec<_>>())
            }
            (None, Some(length)) => {
                let (source, rows) = self.text_rows(model, length)?;
                (source, rows.into_iter().map(of_text).collect())
            }
            (None, None) => bad_input!("give --length, the tokens of a row"),
        };
        let (rows, records): (Vec<Row>, Vec<RowRecord>) = rows.into_iter().unzip();
        let length_tokens = rows[0].ids.len();
        Ok((rows, Data { source, length_tokens, rows: records }))
    }

    fn text_rows(&self, model: &Checkpoint, length: usize) -> Result<(String, Vec<TextRow>)> {
        let tokenizer = tokenizer(model)?;
        let characters = self.row_characters.unwrap_or_else(|| characters_for(length));
        let shape = Shape { length, rows: self.rows.unwrap_or(ROWS), characters };
        let told = |number: usize, row: &TextRow| {
            let (documents, characters) = (row.documents.len(), format_tokens(row.joined_characters));
            notice(&format!("row {number}: {documents} documents of {characters} characters, cut to {length} tokens"));
        };
        let hub;
        let (source, documents) = match (&self.text, &self.dataset) {
            (Some(path), _) => (path.display().to_string(), documents::of_path(path)?),
            (None, Some(id)) if is_id(id) && !std::path::Path::new(id).exists() => {
                hub = Hub::from_env()?;
                let documents = hub.dataset(id, &self.split)?.flat_map(|file| match file {
                    Ok(file) => documents::of_parquet(file),
                    Err(error) => Box::new(std::iter::once(Err(error))),
                });
                (id.clone(), Box::new(documents) as documents::Documents)
            }
            (None, Some(path)) => (path.clone(), documents::of_path(path.as_ref())?),
            (None, None) => bad_input!("give a text with --text or --dataset, or token ids with --tokens"),
        };
        let found = rows(documents, &tokenizer, shape, cache::folder().as_deref(), &told)?;
        if let Some(asked) = self.rows.filter(|asked| *asked > found.len()) {
            notice(&format!("note: {source} has {} rows of {asked} asked for: they repeat", found.len()));
        }
        Ok((source, found))
    }
}
