//! A text made of books or files, as tokens.

use std::path::{Path, PathBuf};

use super::{books, tokens::Tokenizer};
use crate::bad_input;

/// A text as token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// Its books or files, joined by `+`.
    pub name: String,
    /// The token ids, in order.
    pub ids: Vec<u32>,
    /// How many characters (Unicode scalar values) of the text the ids stand
    /// for.
    pub characters: u64,
}

impl Corpus {
    /// The embedded books of those names, in that order and with nothing
    /// between them; of their tokens the first `at_most_tokens`, if given. What
    /// comes later is not tokenized.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if there is no such book or no name.
    pub fn books(names: &[String], tokenizer: &Tokenizer, at_most_tokens: Option<usize>) -> anyhow::Result<Self> {
        if names.is_empty() {
            bad_input!("no book is named; the embedded books are: {}", books::listed());
        }
        let mut text = String::new();
        for name in names {
            text.push_str(books::find(name)?.text);
        }
        Self::text(names.join("+"), &text, tokenizer, at_most_tokens)
    }

    /// Plain text files (UTF-8), as [`books`](Self::books) has books.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) naming the file that is missing, a
    /// folder, empty, or not UTF-8 (with the byte offset), or if no file is
    /// named.
    pub fn files(paths: &[PathBuf], tokenizer: &Tokenizer, at_most_tokens: Option<usize>) -> anyhow::Result<Self> {
        if paths.is_empty() {
            bad_input!("no text file is named");
        }
        let mut text = String::new();
        let mut names = Vec::new();
        for path in paths {
            text.push_str(&read(path)?);
            let name = path.file_name().unwrap_or(path.as_os_str());
            names.push(name.to_string_lossy());
        }
        Self::text(names.join("+"), &text, tokenizer, at_most_tokens)
    }

    /// A text file, or the .txt files of a folder in the order of their names, from the
    /// `offset`th character (Unicode scalar value) on; as [`books`](Self::books) has books.
    ///
    /// # Errors
    /// As [`files`](Self::files) has them, or if the text has no more than `offset` characters.
    pub fn path(
        path: &Path,
        offset: usize,
        tokenizer: &Tokenizer,
        at_most_tokens: Option<usize>,
    ) -> anyhow::Result<Self> {
        let mut paths = vec![path.to_path_buf()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).into_iter().flatten();
            let is_text = |p: &PathBuf| p.extension().is_some_and(|e| e == "txt") && p.is_file();
            paths = entries.filter_map(|e| Some(e.ok()?.path())).filter(is_text).collect();
            paths.sort();
            if paths.is_empty() {
                bad_input!("{}: a folder without .txt files", path.display());
            }
        }
        let mut text = String::new();
        for path in &paths {
            text.push_str(&read(path)?);
        }
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self::part(name, &text, offset, tokenizer, at_most_tokens)
    }

    /// A text from the `offset`th character (Unicode scalar value) on; as
    /// [`books`](Self::books) has books.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if the text has no more than `offset` characters.
    pub fn part(
        name: String,
        text: &str,
        offset: usize,
        tokenizer: &Tokenizer,
        at_most_tokens: Option<usize>,
    ) -> anyhow::Result<Self> {
        let Some((start, _)) = text.char_indices().nth(offset) else {
            bad_input!("{name}: fewer than {} characters: give a smaller offset", offset + 1);
        };
        Self::text(name, &text[start..], tokenizer, at_most_tokens)
    }

    fn text(name: String, text: &str, tokenizer: &Tokenizer, at_most_tokens: Option<usize>) -> anyhow::Result<Self> {
        let at_most = at_most_tokens.unwrap_or(usize::MAX);
        let (ids, characters) = tokenizer.encode_at_most(text, at_most)?;
        Ok(Self { name, ids, characters })
    }

    /// The `index`th run of `length` tokens: ids `index * length` up to
    /// `(index + 1) * length`.
    ///
    /// A corpus of `n` tokens has `n / length` rows (rounded down). After the
    /// last of them comes the first again; the tokens that remain at the end
    /// are in no row.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if the corpus has fewer than
    /// `length` tokens, or `length` is 0.
    pub fn row(&self, length: usize, index: usize) -> anyhow::Result<&[u32]> {
        if length == 0 {
            bad_input!("a row of 0 tokens was asked for; it must have at least 1");
        }
        let Some(last) = (self.ids.len() / length).checked_sub(1) else {
            bad_input!(
                "the text \"{}\" has {} tokens, fewer than the {length} of one row; \
                 name more books or files, or train on shorter sequences",
                self.name,
                self.ids.len()
            );
        };
        let start = index % (last + 1) * length;
        Ok(&self.ids[start..start + length])
    }
}

/// The text of a file that the user named.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    if path.is_dir() {
        bad_input!("{shown}: a folder, where a text file is needed");
    }
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        bad_input!("{shown}: no regular file, where a text file is needed");
    }
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bad_input!("{shown}: no such file")
        }
        Err(error) => bad_input!("{shown}: cannot be read: {error}"),
    };
    if bytes.is_empty() {
        bad_input!("{shown}: the file is empty");
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let offset = error.utf8_error().valid_up_to();
            bad_input!(
                "{shown}: not UTF-8: the byte 0x{:02x} at offset {offset} (of {} bytes) \
                 begins no whole character; save the file as UTF-8 plain text",
                error.as_bytes()[offset],
                error.as_bytes().len()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::BadInput;

    fn tokenizer() -> Tokenizer {
        Tokenizer::embedded().unwrap()
    }

    fn message<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
        let error = result.unwrap_err();
        error.downcast_ref::<BadInput>().expect("wrong input").to_string()
    }

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn books_are_joined_in_the_order_named() {
        let tokenizer = tokenizer();
        let names = named(&["persuasion", "northangerabbey"]);
        let corpus = Corpus::books(&names, &tokenizer, None).unwrap();
        assert_eq!(corpus.name, "persuasion+northangerabbey");
        assert_eq!(corpus.characters, 466_854 + 432_978);
        let text = tokenizer.decode(&corpus.ids).unwrap();
        let text = text.strip_prefix(books::find("persuasion").unwrap().text).unwrap();
        assert!(text == books::find("northangerabbey").unwrap().text);

        let some = Corpus::books(&names, &tokenizer, Some(1500)).unwrap();
        assert_eq!(some.ids, corpus.ids[..1500]);
        let text = tokenizer.decode(&some.ids).unwrap();
        assert_eq!(some.characters, text.chars().count() as u64);

        let wrong = Corpus::books(&named(&["emma", "persuation"]), &tokenizer, None);
        assert!(message(wrong).contains("did you mean \"persuasion\"?"));
        assert!(message(Corpus::books(&[], &tokenizer, None)).contains("emma, mansfieldpark"));
    }

    #[test]
    fn files_are_joined_in_the_order_named() {
        let tokenizer = tokenizer();
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let one = write("one.txt", "A caf\u{e9} by the s".as_bytes());
        let two = write("two.txt", b"ea.");
        let corpus = Corpus::files(&[one.clone(), two], &tokenizer, None).unwrap();
        assert_eq!(corpus.name, "one.txt+two.txt");
        assert_eq!(corpus.ids, tokenizer.encode("A caf\u{e9} by the sea.").unwrap());
        assert_eq!(corpus.characters, 18);

        let fails = |path: PathBuf| message(Corpus::files(&[one.clone(), path], &tokenizer, None));
        let missing = fails(folder.path().join("missing.txt"));
        assert!(missing.ends_with("missing.txt: no such file"), "{missing}");
        let is_folder = fails(folder.path().to_path_buf());
        assert!(is_folder.contains(": a folder,"), "{is_folder}");
        let empty = fails(write("empty.txt", b""));
        assert!(empty.ends_with("empty.txt: the file is empty"), "{empty}");
        let latin = fails(write("latin.txt", b"caf\xe9 noir"));
        assert!(latin.contains("latin.txt: not UTF-8: the byte 0xe9 at offset 3 (of 9 bytes)"), "{latin}");
        let cut_off = fails(write("cut.txt", b"caf\xc3"));
        assert!(cut_off.contains("0xc3 at offset 3 (of 4 bytes)"), "{cut_off}");
        assert_eq!(message(Corpus::files(&[], &tokenizer, None)), "no text file is named");
    }

    #[test]
    fn rows_follow_each_other_and_begin_again() {
        let corpus = Corpus { name: "ten".into(), ids: (0..10).collect(), characters: 10 };
        assert_eq!(corpus.row(3, 0).unwrap(), [0, 1, 2]);
        assert_eq!(corpus.row(3, 2).unwrap(), [6, 7, 8]);
        assert_eq!(corpus.row(3, 3).unwrap(), [0, 1, 2]);
        assert_eq!(corpus.row(3, usize::MAX).unwrap(), corpus.row(3, usize::MAX % 3).unwrap());
        assert_eq!(corpus.row(10, 7).unwrap(), corpus.ids);
        let short = message(corpus.row(11, 0));
        assert!(short.contains("\"ten\" has 10 tokens, fewer than the 11"), "{short}");
        assert!(message(corpus.row(0, 0)).contains("at least 1"));
    }
}
