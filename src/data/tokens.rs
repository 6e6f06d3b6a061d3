//! From text to token ids and back.

use std::path::Path;

use anyhow::{Context, anyhow};
use rayon::prelude::*;
use tokenizers::{NormalizedString, utils::SysRegex};

use crate::bad_input;
use crate::guard::caught;
use crate::hash::sha256;

/// The least size in bytes at which [`Tokenizer::pieces`] cuts a text.
const PIECE: usize = 64 << 10;

/// What [`Tokenizer`] cuts in two, everywhere it would cut a long text, to see
/// whether the halves give the tokens of the whole.
const PROBE: &str = "It is a truth,  universally\n\nacknowledged \t that\r\n\r\n  a \
    single man's 42 \u{a3} WE'LL\tha\u{308}tte x \u{6f22}\u{5b57} \u{639}\u{631}\u{628}\u{64a} \
    \u{915}\u{93c} \u{958}\n\u{e9}t\u{e9}   \n end";

/// A tokenizer that takes long texts in time linear in their length.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    letter: SysRegex,
    divisible: bool,
    /// Of its tokenizer.json, in hex.
    sha256: String,
}

/// Pieces that are tokenized at once.
const AT_ONCE: usize = 32;

impl Tokenizer {
    /// The embedded tokenizer: a byte-level BPE trained on the embedded books.
    ///
    /// Any text has tokens, and decoding them gives the text back in Unicode's
    /// normal form C. It knows no special tokens.
    pub fn embedded() -> anyhow::Result<Self> {
        let json = include_str!("../../experiments/text/tokenizer.json");
        let inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| anyhow!("the embedded tokenizer is damaged: {error}"))?;
        Self::new(inner, sha256(json))
    }

    /// The tokenizer of a `tokenizer.json` such as Qwen3's.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if the file cannot be read or is
    /// not a tokenizer.
    pub fn from_file(path: &Path) -> anyhow::Result<Self> {
        Self::from_json(&super::corpus::read(path)?, &path.display().to_string())
    }

    /// The tokenizer of the text of a `tokenizer.json`; `shown` stands in messages.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if it is not a tokenizer.
    pub fn from_json(json: &str, shown: &str) -> anyhow::Result<Self> {
        // The library panics on some that are none.
        match caught(|| Ok(Self::new(tokenizers::Tokenizer::from_bytes(json)?, sha256(json)))) {
            Some(Ok(tokenizer)) => tokenizer,
            Some(Err::<_, tokenizers::Error>(error)) => {
                bad_input!("{shown}: not a tokenizer in the format of tokenizer.json: {error}")
            }
            None => bad_input!("{shown}: not a tokenizer in the format of tokenizer.json"),
        }
    }

    fn new(mut inner: tokenizers::Tokenizer, sha256: String) -> anyhow::Result<Self> {
        // A file may ask for either; both would spoil a long text.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        let letter = SysRegex::new(r"^\p{L}$").map_err(|error| anyhow!("{error}"))?;
        let mut this = Self { inner, letter, divisible: false, sha256 };
        this.divisible = this.divides(PROBE);
        Ok(this)
    }

    /// Which tokenizer it is: the SHA-256 of its tokenizer.json, in hex.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// The number of token ids: one more than the largest.
    pub fn vocab_size(&self) -> usize {
        let vocabulary = self.inner.get_vocab(true);
        vocabulary.values().max().map_or(0, |&id| id as usize + 1)
    }

    /// The token ids of `text`, without special tokens around it.
    ///
    /// Long texts are tokenized in [`pieces`](Self::pieces); the ids are those
    /// of the whole.
    pub fn encode(&self, text: &str) -> anyhow::Result<Vec<u32>> {
        Ok(self.encode_at_most(text, usize::MAX)?.0)
    }

    /// The first `at_most` token ids of `text`, and how many characters
    /// (Unicode scalar values) they stand for.
    ///
    /// Pieces after that are not tokenized. A character of which only the first
    /// bytes are in the ids is counted.
    pub fn encode_at_most(&self, text: &str, at_most: usize) -> anyhow::Result<(Vec<u32>, u64)> {
        let mut ids = Vec::new();
        let mut characters = 0;
        let mut pieces = self.pieces(text);
        while ids.len() < at_most {
            // As many pieces side by side as there may be wanted still.
            let some: Vec<&str> = pieces.by_ref().take(AT_ONCE.min(1 + (at_most - ids.len()) / (PIECE / 4))).collect();
            if some.is_empty() {
                break;
            }
            let found: Vec<Vec<u32>> =
                some.par_iter().map(|piece| self.encode_piece(piece)).collect::<anyhow::Result<_>>()?;
            for (piece, found) in some.into_iter().zip(found) {
                let wanted = at_most - ids.len();
                if found.len() <= wanted {
                    ids.extend(found);
                    characters += piece.chars().count() as u64;
                } else if wanted > 0 {
                    ids.extend(&found[..wanted]);
                    characters += self.characters_of(piece, wanted)?;
                }
            }
        }
        Ok((ids, characters))
    }

    /// The text of token ids, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> anyhow::Result<String> {
        self.inner.decode(ids, false).map_err(|error| anyhow!("cannot decode {} tokens: {error}", ids.len()))
    }

    /// Cuts `text` into pieces of 64 KiB (65,536 bytes) and a little more, such
    /// that the tokens of the pieces, joined, are those of the text.
    ///
    /// A cut lies between a letter and the white space after it, where the
    /// pre-tokenizers of GPT-2, GPT-4 and Qwen cut in any case. A piece goes on
    /// to the next such place however far that is. With a tokenizer that joins
    /// across such places (it is tried on a short text when loaded) the one
    /// piece is the whole text.
    pub fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        self.pieces_of(text, PIECE)
    }

    fn pieces_of<'t>(&self, text: &'t str, least: usize) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let cut = if self.divisible { self.cut(rest, least) } else { None };
            let (piece, after) = rest.split_at(cut.unwrap_or(rest.len()));
            rest = after;
            Some(piece)
        })
    }

    /// The first place to cut `text` at or after byte `least`.
    fn cut(&self, text: &str, least: usize) -> Option<usize> {
        if least >= text.len() {
            return None;
        }
        // One character back: the letter may end exactly at `least`.
        let start = text.floor_char_boundary(least.saturating_sub(1));
        let mut before = None;
        for (place, c) in text[start..].char_indices() {
            if c.is_whitespace() && before.is_some_and(|b| self.is_letter(b)) {
                return Some(start + place);
            }
            before = Some(c);
        }
        None
    }

    /// Whether `c` is a letter (Unicode's category L) and remains one in normal
    /// form C. U+0958 does not: it becomes a letter and a mark.
    fn is_letter(&self, c: char) -> bool {
        if c.is_ascii() {
            return c.is_ascii_alphabetic();
        }
        let mut bytes = [0; 4];
        let text: &str = c.encode_utf8(&mut bytes);
        let mut normal = NormalizedString::from(text);
        self.letter.find_iter(text).next().is_some() && normal.nfc().get() == text
    }

    fn encode_piece(&self, piece: &str) -> anyhow::Result<Vec<u32>> {
        let encoding = self
            .inner
            .encode_fast(piece, false)
            .map_err(|error| anyhow!("{error}"))
            .with_context(|| format!("cannot tokenize a text of {} bytes", piece.len()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// How many characters of `piece` its first `tokens` tokens stand for.
    fn characters_of(&self, piece: &str, tokens: usize) -> anyhow::Result<u64> {
        let encoding = self.inner.encode_char_offsets(piece, false).map_err(|error| anyhow!("{error}"))?;
        let ends = encoding.get_offsets()[..tokens].iter().map(|&(_, end)| end);
        Ok(ends.max().unwrap_or(0) as u64)
    }

    /// Whether cutting `text` at any one place leaves its tokens as they are.
    fn divides(&self, text: &str) -> bool {
        let Ok(whole) = self.encode_piece(text) else {
            return false;
        };
        let mut from = 1;
        while let Some(place) = self.cut(text, from) {
            let halves = self.encode_piece(&text[..place]).and_then(|mut ids| {
                ids.extend(self.encode_piece(&text[place..])?);
                Ok(ids)
            });
            if !halves.is_ok_and(|halves| halves == whole) {
                return false;
            }
            from = place + 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{data::books::BOOKS, error::BadInput};

    fn embedded() -> Tokenizer {
        Tokenizer::embedded().unwrap()
    }

    fn joined(tokenizer: &Tokenizer, text: &str, least: usize) -> Vec<u32> {
        let pieces = tokenizer.pieces_of(text, least);
        pieces.flat_map(|piece| tokenizer.encode_piece(piece).unwrap()).collect()
    }

    #[test]
    fn books_survive_and_pieces_give_the_tokens_of_the_whole() {
        let tokenizer = embedded();
        for book in &BOOKS {
            let whole = tokenizer.encode_piece(book.text).unwrap();
            assert_eq!(tokenizer.encode(book.text).unwrap(), whole, "{}", book.name);
            assert_eq!(joined(&tokenizer, book.text, 1000), whole, "{}", book.name);
            assert!(tokenizer.decode(&whole).unwrap() == book.text, "{}", book.name);
            let pieces = tokenizer.pieces(book.text).count();
            assert_eq!(pieces, book.text.len().div_ceil(PIECE), "{}", book.name);
            let per_token = book.text.len() as f64 / whole.len() as f64;
            assert!((2.5..5.0).contains(&per_token), "{}: {per_token}", book.name);
        }
    }

    #[test]
    fn every_byte_has_a_token() {
        let tokenizer = embedded();
        assert!(tokenizer.vocab_size() >= 256);
        let all: String = (0..0x3000).chain(0x1f600..0x1f640).filter_map(char::from_u32).collect();
        let mut normal = NormalizedString::from(all.as_str());
        let normal = normal.nfc().get();
        let ids = tokenizer.encode(&all).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), normal);
        let bytes = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(bytes.len(), 256);
        assert!(bytes.iter().all(|b| tokenizer.inner.token_to_id(&b.to_string()).is_some()));
    }

    #[test]
    fn cuts_lie_between_a_letter_and_white_space_only() {
        let tokenizer = embedded();
        assert!(tokenizer.divisible);
        let pieces = |text| tokenizer.pieces_of(text, 1).collect::<Vec<_>>();
        assert_eq!(pieces("one two\n\nthree"), ["one", " two", "\n\nthree"]);
        assert_eq!(pieces("x  y, 12 z\u{308} \n?"), ["x", "  y, 12 z\u{308} \n?"]);
        // A letter that normal form C turns into a letter and a mark.
        assert_eq!(pieces("\u{958}\n\u{915}\n"), ["\u{958}\n\u{915}", "\n"]);
        // Circled letters and Roman numerals are alphabetic but not letters.
        assert_eq!(pieces("\u{24b6} \u{2160} \u{6f22} "), ["\u{24b6} \u{2160} \u{6f22}", " "]);
        assert_eq!(pieces(""), [""; 0]);
        assert_eq!(tokenizer.pieces_of("ab cd ef", 2).collect::<Vec<_>>(), ["ab", " cd", " ef"]);
        assert_eq!(tokenizer.pieces_of("ab cd ef", 3).collect::<Vec<_>>(), ["ab cd", " ef"]);
        let whole = tokenizer.encode_piece(PROBE).unwrap();
        assert_eq!(joined(&tokenizer, PROBE, 1), whole);
    }

    /// failures.md 39: megabytes in one string.
    #[test]
    fn time_is_linear_even_without_a_place_to_cut() {
        let tokenizer = embedded();
        for text in ["1234, ".repeat(50_000), " ".repeat(300_000), "\u{e9}\u{308}\n".repeat(60_000)] {
            let start = Instant::now();
            assert_eq!(tokenizer.pieces(&text).count(), 1);
            let ids = tokenizer.encode(&text).unwrap();
            assert!(tokenizer.decode(&ids).unwrap() == text);
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        }
    }

    #[test]
    fn the_first_tokens_are_those_of_the_whole() {
        let tokenizer = embedded();
        let text = BOOKS[1].text;
        let (all, characters) = tokenizer.encode_at_most(text, usize::MAX).unwrap();
        assert_eq!(characters, text.chars().count() as u64);
        for at_most in [0, 1, 1000, 40_000, all.len() - 1, all.len(), all.len() + 1] {
            let (ids, characters) = tokenizer.encode_at_most(text, at_most).unwrap();
            assert_eq!(ids, all[..at_most.min(all.len())]);
            let decoded = tokenizer.decode(&ids).unwrap();
            assert_eq!(characters, decoded.chars().count() as u64);
        }
    }

    #[test]
    fn tokenizers_that_join_across_cuts_are_not_cut() {
        use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
        let mut inner = embedded().inner;
        inner.with_pre_tokenizer(Some(Metaspace::new('\u{2581}', PrependScheme::Always, false)));
        let tokenizer = Tokenizer::new(inner, String::new()).unwrap();
        assert!(!tokenizer.divisible);
        assert_eq!(tokenizer.pieces_of("one two", 1).count(), 1);
    }

    #[test]
    fn files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let message = |path: &Path| {
            let error = Tokenizer::from_file(path).err().unwrap();
            error.downcast_ref::<BadInput>().unwrap().to_string()
        };
        assert!(message(&path).contains("tokenizer.json: no such file"), "{}", message(&path));
        std::fs::write(&path, "{}").unwrap();
        assert!(message(&path).contains("tokenizer.json: not a tokenizer"), "{}", message(&path));

        // What a file says about padding and truncation is put aside.
        let mut inner = embedded().inner;
        inner.with_padding(Some(Default::default()));
        inner.with_truncation(Some(Default::default())).unwrap();
        inner.save(&path, false).unwrap();
        let text = &BOOKS[0].text[..5000];
        let ids = Tokenizer::from_file(&path).unwrap().encode(text).unwrap();
        assert_eq!(ids, embedded().encode(text).unwrap());
    }
}
