//! What the tests of the program share: a ladder of a second, in a folder, and the program.
#![allow(dead_code)] // each test file uses its own part

use std::path::Path;
use std::process::{Command, Output};

use ablation::record::Records;

/// A ladder of a second.
pub const TINY: &str = r#"
name = "tiny"
title = "Tiny"
seed = 1
steps = 2
budget = "700KiB"
[model]
name = "tiny"
vocab_size = 2048
hidden_size = 16
intermediate_size = 32
num_hidden_layers = 2
num_attention_heads = 2
num_key_value_heads = 1
head_dim = 8
rms_norm_eps = 1e-6
rope_theta = 1e4
max_position_embeddings = 64
tie_word_embeddings = true
[text]
files = ["text.txt"]
[toggles]
chunk_rows = 32
[[rung]]
name = "plain"
adds = "nothing <yet> | a pipe"
toggles = { loss = "full" }
grid = 4
curve = [4]
[[rung]]
name = "ring"
toggles = { cp = "ring", ranks = 2 }
grid = 4
stop_at = 64
"#;

/// The program, ready to start in `dir`.
pub fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ablation"));
    command.args(arguments).current_dir(dir);
    command
}

pub fn ablation(dir: &Path, arguments: &[&str]) -> Output {
    command(dir, arguments).output().unwrap()
}

/// A folder with the ladder and its text.
pub fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tiny.toml"), TINY).unwrap();
    let text = include_str!("../../experiments/text/emma.txt");
    std::fs::write(dir.path().join("text.txt"), &text[..4000]).unwrap();
    dir
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The records in a folder.
pub fn records(dir: &Path) -> Records {
    Records::read(dir).unwrap()
}

/// A byte-level tokenizer without merges whose ids are the bytes.
pub fn byte_tokenizer() -> String {
    let mut letters: Vec<char> = Vec::new();
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut others = 256;
    for byte in 0..256u32 {
        letters.push(char::from_u32(if printable(byte) { byte } else { others }).unwrap());
        others += u32::from(!printable(byte));
    }
    let vocabulary: std::collections::HashMap<String, usize> =
        letters.iter().enumerate().map(|(id, c)| (c.to_string(), id)).collect();
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": [] },
    })
    .to_string()
}
