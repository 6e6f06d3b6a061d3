//! A study's file: TOML, every key checked.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::{Setting, SettingRope, Source, Study};
use crate::bad_input;
use crate::units::parse_tokens;

/// Studies in the program.
const BUILT_IN: [(&str, &str); 1] = [("yarn", include_str!("../../experiments/yarn.toml"))];

/// More settings than this make no figure.
const MOST_SETTINGS: usize = 12;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StudyFile {
    name: String,
    title: String,
    description: String,
    model: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    length: Option<Tokens>,
    text: TextFile,
    setting: Vec<SettingFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Tokens {
    Number(u64),
    Text(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    books: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tokens: Option<String>,
    #[serde(default)]
    offset: usize,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingFile {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    yarn: Option<YarnFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct YarnFile {
    factor: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    original: Option<u64>,
}

/// Whether the text of an experiment file is that of a study.
pub fn is_study(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("setting"))
}

/// The text of a built-in study.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(built_in, _)| *built_in == name).map(|(_, text)| *text)
}

/// Reads and checks a study. `shown` stands in messages; a text that it names is relative to
/// `folder`.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) with the key, and the line where it can be told.
pub fn parse(text: &str, shown: &str, folder: &Path) -> Result<Study> {
    let file: StudyFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => bad_input!("{shown}: {}", error.to_string().trim_end()),
    };
    let length = match &file.length {
        None => None,
        Some(Tokens::Number(tokens)) => Some(*tokens),
        Some(Tokens::Text(text)) => Some(parse_tokens(text)?),
    };
    if length.is_some_and(|length| length < 2) {
        bad_input!("{shown}: length: at least 2 tokens");
    }
    let offset = file.text.offset;
    let source = match (file.text.books, file.text.path, file.text.tokens) {
        (Some(names), None, None) => Source::Books { names, offset },
        (None, Some(path), None) => Source::Path { path: folder.join(path), offset },
        (None, None, Some(path)) if offset == 0 => Source::Tokens(folder.join(path)),
        _ => bad_input!("{shown}: text: give one of `books`, `path` and `tokens` (which has no `offset`)"),
    };
    let plain = |name: &str| !name.is_empty() && name.len() <= 60 && !name.chars().any(char::is_control);
    if !plain(&file.name) || !file.name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')) {
        bad_input!("{shown}: name = \"{}\": letters, digits, - and _ make a folder's name", file.name);
    }
    if file.setting.is_empty() || file.setting.len() > MOST_SETTINGS {
        bad_input!("{shown}: {} settings: from 1 to {MOST_SETTINGS}", file.setting.len());
    }
    let mut settings: Vec<Setting> = Vec::new();
    for SettingFile { name, yarn } in file.setting {
        if !plain(&name) || settings.iter().any(|s| s.name == name) {
            bad_input!("{shown}: setting.name = \"{name}\": each needs a short name of its own");
        }
        let rope = match yarn {
            None => SettingRope::Own,
            Some(YarnFile { factor, .. }) if !(factor.is_finite() && factor >= 1.0) => {
                bad_input!("{shown}: setting \"{name}\": factor = {factor}: a number, 1 or more")
            }
            Some(YarnFile { factor, original }) => SettingRope::Yarn { factor, original },
        };
        settings.push(Setting { name, rope });
    }
    let StudyFile { name, title, description, model, .. } = file;
    Ok(Study { name, title, description, model, length, source, settings })
}

impl Study {
    /// The file that gives this study again. Paths are as they are reached from here.
    pub fn to_toml(&self) -> Result<String> {
        let shown = |path: &Path| Some(path.display().to_string());
        let (books, path, tokens, offset) = match &self.source {
            Source::Books { names, offset } => (Some(names.clone()), None, None, *offset),
            Source::Path { path, offset } => (None, shown(path), None, *offset),
            Source::Tokens(path) => (None, None, shown(path), 0),
        };
        let setting = |s: &Setting| {
            let yarn = match &s.rope {
                SettingRope::Own => None,
                SettingRope::Yarn { factor, original } => Some(YarnFile { factor: *factor, original: *original }),
            };
            SettingFile { name: s.name.clone(), yarn }
        };
        let file = StudyFile {
            name: self.name.clone(),
            title: self.title.clone(),
            description: self.description.clone(),
            model: self.model.clone(),
            length: self.length.map(Tokens::Number),
            text: TextFile { books, path, tokens, offset },
            setting: self.settings.iter().map(setting).collect(),
        };
        Ok(toml::to_string(&file)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(text: &str) -> Result<Study> {
        parse(text, "study.toml", Path::new("."))
    }

    #[test]
    fn the_built_in_study_is_read_and_written() {
        let text = built_in("yarn").unwrap();
        assert!(is_study(text) && !is_study(include_str!("../../experiments/small.toml")));
        let yarn = study(text).unwrap();
        assert_eq!((yarn.settings.len(), yarn.length), (3, Some(16_384)));
        assert_eq!(yarn.settings[2].rope, SettingRope::Yarn { factor: 4.0, original: Some(8192) });
        assert_eq!(study(&yarn.to_toml().unwrap()).unwrap(), yarn);
    }

    #[test]
    fn every_key_is_checked() {
        let text = built_in("yarn").unwrap();
        for (from, to, part) in [
            ("offset", "ofset", "ofset"),
            ("length = \"16k\"", "length = 1", "at least 2"),
            ("factor = 2.0", "factor = 0.5", "1 or more"),
            ("\"YaRN 4\"", "\"YaRN 2\"", "name of its own"),
            ("books = [\"emma\"]", "", "one of `books`, `path`"),
            ("name = \"yarn\"", "name = \"../x\"", "folder's name"),
            ("title", "titel", "titel"),
        ] {
            let error = study(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.is::<crate::error::BadInput>() && error.to_string().contains(part), "{part}: {error}");
        }
        assert!(study(&text[..text.find("[[setting]]").unwrap()]).unwrap_err().to_string().contains("setting"));
    }
}
