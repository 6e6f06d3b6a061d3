//! The tokenizer inside a GGUF file, as the text of a tokenizer.json.
//!
//! llama.cpp names a pre-tokenizer (`tokenizer.ggml.pre`) where a tokenizer.json writes it
//! out. Those known here are written as their models publish them; candle's own reading
//! takes GPT-2's for all, which is wrong for both.

use anyhow::Result;
use candle_core::quantized::gguf_file::Value;
use serde_json::{Value as Json, json};

use super::gguf::Gguf;
use crate::bad_input;

/// The token types of llama.cpp that stand for themselves in a text.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

/// Qwen2's and Qwen3's split of a text into words.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The tokenizer.json of a file's tokenizer.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if the file has none, or one of a kind not known here.
pub fn json(file: &Gguf) -> Result<String> {
    let shown = file.path().display();
    let text = |key: &str| match file.value(key) {
        Some(Value::String(text)) => Some(&text[..]),
        _ => None,
    };
    let Some(model) = text("tokenizer.ggml.model") else {
        bad_input!("{shown}: there is no tokenizer in it: give token ids with --tokens");
    };
    if model != "gpt2" {
        bad_input!("{shown}: a tokenizer of the kind `{model}` is not read here: give token ids with --tokens");
    }
    let byte_level = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
    let (normalizer, words) = match text("tokenizer.ggml.pre") {
        Some("smollm") => (Json::Null, vec![json!({ "type": "Digits", "individual_digits": true }), byte_level(true)]),
        Some("qwen2") => {
            let split =
                json!({ "type": "Split", "pattern": { "Regex": QWEN2 }, "behavior": "Isolated", "invert": false });
            (json!({ "type": "NFC" }), vec![split, byte_level(false)])
        }
        other => bad_input!(
            "{shown}: its pre-tokenizer {other:?} is not known here (smollm and qwen2 are): give token ids with --tokens"
        ),
    };
    let tokens = strings(file, "tokenizer.ggml.tokens")?;
    if tokens.len() != file.config().vocab_size {
        bad_input!("{shown}: {} tokens, where the embedding has {} rows", tokens.len(), file.config().vocab_size);
    }
    let types = match file.value("tokenizer.ggml.token_type") {
        Some(Value::Array(types)) if types.len() == tokens.len() => types.iter().map(number).collect(),
        _ => vec![None; tokens.len()],
    };
    let mut vocabulary = serde_json::Map::new();
    let mut added = Vec::new();
    for (id, (token, kind)) in tokens.iter().zip(types).enumerate() {
        if vocabulary.insert(token.to_string(), json!(id)).is_some() {
            bad_input!("{shown}: the token `{token}` stands twice");
        }
        if kind == Some(CONTROL) || kind == Some(USER_DEFINED) {
            let special = kind == Some(CONTROL);
            added.push(json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }));
        }
    }
    let mut merges = Vec::new();
    for merge in strings(file, "tokenizer.ggml.merges")? {
        match merge.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => merges.push(json!([left, right])),
            _ => bad_input!("{shown}: the merge `{merge}` is no pair"),
        }
    }
    let all = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": words },
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges,
        },
    });
    Ok(all.to_string())
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::I32(n) => u64::try_from(*n).ok(),
        other => other.to_u64().ok().or_else(|| other.to_u32().ok().map(u64::from)),
    }
}

fn strings<'a>(file: &'a Gguf, key: &str) -> Result<Vec<&'a str>> {
    let shown = file.path().display();
    let Some(Value::Array(values)) = file.value(key) else { bad_input!("{shown}: {key} is missing") };
    let mut strings = Vec::with_capacity(values.len());
    for value in values {
        match value {
            Value::String(text) => strings.push(&text[..]),
            other => bad_input!("{shown}: {key} has {other:?} among its strings"),
        }
    }
    Ok(strings)
}
