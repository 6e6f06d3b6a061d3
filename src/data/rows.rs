//! Rows of one length made of documents, as Hugging Face's guide makes them of PG-19: book
//! after book with nothing between, until a row has its characters; then it is tokenized and
//! cut to the length.

use std::path::Path;

use anyhow::Result;

use super::documents::{Document, Documents};
use super::{Tokenizer, cache};
use crate::bad_input;

/// The guide's rows of 1,048,576 tokens have at least this many characters
/// (`sft_qwen3_8b_1m_context.py`).
const GUIDE_CHARACTERS: u64 = 6_000_000;
const GUIDE_TOKENS: u64 = 1 << 20;

/// The guide's characters of a row of `length` tokens.
pub fn characters_for(length: usize) -> usize {
    (GUIDE_CHARACTERS as u128 * length as u128).div_ceil(GUIDE_TOKENS as u128) as usize
}

/// What rows are asked for.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Tokens of a row.
    pub length: usize,
    /// Rows at most.
    pub rows: usize,
    /// A row takes documents until it has this many characters.
    pub characters: usize,
}

/// A row of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextRow {
    pub ids: Vec<u32>,
    /// The documents that it is made of.
    pub documents: Vec<String>,
    /// Characters (Unicode scalar values) of those documents.
    pub joined_characters: u64,
    /// Characters that the ids stand for.
    pub characters: u64,
}

/// Where to cut a text that has more than `characters`: at the first white space from there.
fn end_of_part(text: &str, characters: usize) -> Option<usize> {
    let (start, _) = text.char_indices().nth(characters)?;
    let end = text[start..].find(char::is_whitespace)?;
    Some(start + end)
}

/// Cuts documents of more than `characters` in parts, so that one long book makes several rows.
fn in_parts(documents: Documents, characters: usize) -> Documents {
    Box::new(documents.flat_map(move |document| {
        let Document { name, text } = match document {
            Ok(document) => document,
            Err(error) => return vec![Err(error)],
        };
        let (mut parts, mut rest) = (Vec::new(), &text[..]);
        while let Some(end) = end_of_part(rest, characters) {
            let (part, after) = rest.split_at(end);
            parts.push(part);
            rest = after;
        }
        parts.push(rest);
        let many = parts.len() > 1;
        let named = |(i, part): (usize, &str)| {
            let name = if many { format!("{name} (part {})", i + 1) } else { name.clone() };
            Ok(Document { name, text: part.to_string() })
        };
        parts.into_iter().enumerate().map(named).collect()
    }))
}

/// The rows that the documents make; fewer where they end. `cache`: see [`cache`]. `progress`
/// is called with each row.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if a row has fewer tokens than asked for, or what is
/// wrong with a document.
pub fn rows(
    documents: Documents,
    tokenizer: &Tokenizer,
    shape: Shape,
    cache: Option<&Path>,
    progress: &dyn Fn(usize, &TextRow),
) -> Result<Vec<TextRow>> {
    let mut documents = in_parts(documents, shape.characters);
    let mut rows: Vec<TextRow> = Vec::new();
    while rows.len() < shape.rows {
        let (mut text, mut characters, mut names) = (String::new(), 0, Vec::new());
        while characters < shape.characters {
            let Some(document) = documents.next().transpose()? else { break };
            characters += document.text.chars().count();
            text.push_str(&document.text);
            names.push(document.name);
        }
        let (ids, of_ids) = cache::encode_at_most(cache, tokenizer, &text, shape.length)?;
        if ids.len() < shape.length {
            if characters >= shape.characters {
                bad_input!(
                    "row {} has {} tokens in {characters} characters, fewer than {}: ask for more characters with \
                     --row-characters",
                    rows.len() + 1,
                    ids.len(),
                    shape.length
                );
            }
            if rows.is_empty() {
                bad_input!(
                    "the text has {} tokens, fewer than the {} of one row: give a longer text or train on shorter sequences",
                    ids.len(),
                    shape.length
                );
            }
            // What is left over at the end.
            break;
        }
        let joined_characters = characters as u64;
        rows.push(TextRow { ids, documents: names, joined_characters, characters: of_ids });
        progress(rows.len(), &rows[rows.len() - 1]);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn documents(texts: &[&str]) -> Documents<'static> {
        let named = |(i, text): (usize, &&str)| Ok(Document { name: i.to_string(), text: text.to_string() });
        Box::new(texts.iter().enumerate().map(named).collect::<Vec<_>>().into_iter())
    }

    fn of(texts: &[&str], length: usize, rows: usize, characters: usize) -> Result<Vec<TextRow>> {
        let tokenizer = Tokenizer::embedded().unwrap();
        super::rows(documents(texts), &tokenizer, Shape { length, rows, characters }, None, &|_, _| {})
    }

    #[test]
    fn the_guides_row_of_a_million_tokens_has_six_million_characters() {
        assert_eq!(characters_for(1 << 20), 6_000_000);
        assert_eq!(characters_for(16_384), 93_750);
        assert_eq!(characters_for(1), 6);
    }

    #[test]
    fn book_after_book_until_a_row_is_full() {
        let books = ["one two three ", "four five six ", "seven eight nine ", "ten"];
        let rows = of(&books, 4, 4, 20).unwrap();
        let tokenizer = Tokenizer::embedded().unwrap();
        let expected = |text: &str| tokenizer.encode(text).unwrap()[..4].to_vec();
        assert_eq!(rows.len(), 2);
        assert_eq!((&rows[0].documents[..], rows[0].joined_characters), (&["0".to_string(), "1".into()][..], 28));
        assert_eq!(rows[0].ids, expected("one two three four five six "));
        assert_eq!(tokenizer.decode(&rows[0].ids).unwrap().chars().count() as u64, rows[0].characters);
        // Nothing of the second book is left for the second row.
        assert_eq!(rows[1].ids, expected("seven eight nine ten"));
        assert_eq!(rows[1].documents, ["2", "3"]);
        assert_eq!(of(&books, 4, 1, 20).unwrap(), rows[..1]);
    }

    #[test]
    fn one_long_book_makes_several_rows() {
        let book = "and so it went on and on ".repeat(40);
        let rows = of(&[&book], 10, 9, 100).unwrap();
        assert_eq!(rows.len(), 9);
        assert_eq!(rows[1].documents, ["0 (part 2)"]);
        let parts: Vec<&str> = rows.iter().flat_map(|r| &r.documents).map(String::as_str).collect();
        assert_eq!(parts.iter().collect::<std::collections::HashSet<_>>().len(), parts.len());
    }

    #[test]
    fn too_little_is_said() {
        let said = |result: Result<Vec<TextRow>>| {
            let error = result.unwrap_err();
            assert!(error.is::<crate::error::BadInput>());
            error.to_string()
        };
        assert!(said(of(&["two words"], 10, 1, 60)).contains("fewer than the 10 of one row"));
        assert!(said(of(&["two words"], 10, 1, 6)).contains("--row-characters"));
        assert!(said(of(&[], 10, 1, 6)).contains("has 0 tokens"));
    }
}
