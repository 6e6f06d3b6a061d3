//! A study: the loss of a trained model by position in one text, under several ropes.
//! Nothing is trained.

pub mod file;
pub mod run;

use std::path::PathBuf;

/// A study of one model on one text.
#[derive(Debug, Clone, PartialEq)]
pub struct Study {
    pub name: String,
    pub title: String,
    pub description: String,
    /// A hub id, a folder or a GGUF file.
    pub model: String,
    /// Tokens of the sequence; none: all that the text has.
    pub length: Option<u64>,
    pub source: Source,
    pub settings: Vec<Setting>,
}

/// Where the tokens are from.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Built-in books, joined in this order, without their first characters.
    Books { names: Vec<String>, offset: usize },
    /// A text file or a folder of them, without the first characters.
    Path { path: PathBuf, offset: usize },
    /// Rows of token ids, of which the first counts.
    Tokens(PathBuf),
}

/// One way to place positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    pub name: String,
    pub rope: SettingRope,
}

/// The rope of a setting.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingRope {
    /// The model's own.
    Own,
    /// YaRN with the model's own theta; `original`: tokens, none: the model's own length.
    Yarn { factor: f64, original: Option<u64> },
}
