//! Trains the embedded tokenizer on the embedded books.
//!
//! ```text
//! cargo run --release --example train_tokenizer [VOCABULARY] [FILE]
//! ```
//!
//! VOCABULARY is the number of tokens in all (2048 if left out), the 256 bytes
//! included; FILE is `experiments/text/tokenizer.json` if left out. The same
//! books and number give the same file, byte for byte.

use std::collections::HashSet;

use ablation::data::books::BOOKS;
use anyhow::{Context, anyhow, ensure};
use tokenizers::{
    SplitDelimiterBehavior, Tokenizer,
    models::{
        TrainerWrapper,
        bpe::{BPE, BpeTrainerBuilder},
    },
    normalizers::NFC,
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

/// Where Qwen3's tokenizer divides a text: merges never cross these places.
const WORDS: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let size = match arguments.next() {
        Some(size) => {
            size.parse().with_context(|| format!("the vocabulary must be a number of tokens, not \"{size}\""))?
        }
        None => 2048,
    };
    ensure!(size >= 256, "the vocabulary must have at least the 256 bytes, not {size} tokens");
    let path = arguments.next().unwrap_or("experiments/text/tokenizer.json".into());

    let json = train(size).map_err(|error| anyhow!("{error}"))?;
    std::fs::write(&path, &json).with_context(|| format!("cannot write {path}"))?;
    println!("{path}: {size} tokens, {} bytes", json.len());
    report(&json).map_err(|error| anyhow!("{error}"))
}

/// The tokenizer of `size` tokens, as JSON.
fn train(size: usize) -> tokenizers::Result<String> {
    let words = Split::new(SplitPattern::Regex(WORDS.into()), SplitDelimiterBehavior::Isolated, false)?;
    let bytes = ByteLevel::new(false, false, false);
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_normalizer(Some(NFC))?;
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![
        PreTokenizerWrapper::Split(words),
        PreTokenizerWrapper::ByteLevel(bytes),
    ])));
    tokenizer.with_decoder(Some(bytes));

    let trainer = BpeTrainerBuilder::new()
        .vocab_size(size)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect::<HashSet<char>>())
        .show_progress(false)
        .build();
    let mut trainer = TrainerWrapper::from(trainer);
    tokenizer.train(&mut trainer, BOOKS.iter().map(|book| book.text))?;

    let found = tokenizer.get_vocab_size(true);
    if found != size {
        return Err(format!("the books give no more than {found} tokens").into());
    }
    Ok(tokenizer.to_string(false)? + "\n")
}

/// Prints how many tokens each book has.
fn report(json: &str) -> tokenizers::Result<()> {
    let tokenizer = Tokenizer::from_bytes(json)?;
    for book in &BOOKS {
        let tokens = tokenizer.encode_fast(book.text, false)?.len();
        let characters = book.text.chars().count();
        println!(
            "{:>20} {characters:>8} characters {tokens:>8} tokens {:.4} tokens per character",
            book.name,
            tokens as f64 / characters as f64
        );
    }
    Ok(())
}
