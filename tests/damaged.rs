//! Models, tokenizers, ids, datasets and studies that are damaged: each is refused or harmless;
//! nothing panics, aborts, hangs or asks for memory that its file doesn't justify.
//!
//! `PROPTEST_CASES=20000 cargo test --release --test damaged` goes on for ten minutes and more.
#![cfg(unix)]

mod damage;
mod program;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use damage::*;
use polars::prelude::{Column, DataFrame, NamedFrom, ParquetWriter, Series};
use program::*;
use proptest::prelude::*;

/// A file to damage, and what reads it. Paths are within the folder of [`whole`].
const READERS: [(&str, &[&str]); 9] = [
    ("model/config.json", &LOSS),
    ("model/model.safetensors", &LOSS),
    ("model/tokenizer.json", &["loss", "--model", "model", "--text", "text.txt", "--length", "16", "--json"]),
    ("sharded/model.safetensors.index.json", &["loss", "--model", "sharded", "--tokens", "rows.safetensors", "--json"]),
    ("rows.safetensors", &LOSS),
    ("tiny.gguf", &["loss", "--model", "tiny.gguf", "--text", "text.txt", "--length", "16", "--json"]),
    ("books.parquet", &TRAIN),
    ("study.toml", &["run", "study.toml", "--out", "new"]),
    ("out/losses.parquet", &["report", "out"]),
];
const LOSS: [&str; 6] = ["loss", "--model", "model", "--tokens", "rows.safetensors", "--json"];
const TRAIN: [&str; 13] = [
    "train",
    "--model",
    "model",
    "--dataset",
    "books.parquet",
    "--length",
    "16",
    "--steps",
    "1",
    "--rows",
    "1",
    "--out",
    "new",
];

const STUDY: &str = r#"
name = "short"
title = "A short study"
description = "A tiny model."
model = "model"
length = 32
[text]
path = "text.txt"
[[setting]]
name = "YaRN 2"
yarn = { factor = 2.0 }
"#;

fn write_rows(path: &Path) {
    let bytes: Vec<u8> = (0..32i64).flat_map(i64::to_le_bytes).collect();
    let ids = safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![1, 32], &bytes).unwrap();
    safetensors::serialize_to_file([("input_ids", ids)], None::<HashMap<String, String>>, path).unwrap();
}

/// A llama of one layer with a tokenizer of bytes, as llama.cpp writes it.
fn write_gguf(path: &Path) {
    let byte_ids: HashMap<String, usize> = serde_json::from_value(
        serde_json::from_str::<serde_json::Value>(&byte_tokenizer()).unwrap()["model"]["vocab"].clone(),
    )
    .unwrap();
    let mut letters = vec![String::new(); 256];
    byte_ids.into_iter().for_each(|(letter, id)| letters[id] = letter);
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.embedding_length", Value::U32(32)),
        ("llama.feed_forward_length", Value::U32(32)),
        ("llama.block_count", Value::U32(1)),
        ("llama.attention.head_count", Value::U32(2)),
        ("llama.attention.head_count_kv", Value::U32(1)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.context_length", Value::U32(64)),
        ("llama.rope.freq_base", Value::F32(1e4)),
        ("tokenizer.ggml.model", Value::String("gpt2".into())),
        ("tokenizer.ggml.pre", Value::String("smollm".into())),
        ("tokenizer.ggml.tokens", Value::Array(letters.into_iter().map(Value::String).collect())),
        ("tokenizer.ggml.merges", Value::Array(Vec::new())),
    ];
    let shapes: [(&str, &[usize]); 11] = [
        ("token_embd.weight", &[256, 32]),
        ("output_norm.weight", &[32]),
        ("blk.0.attn_norm.weight", &[32]),
        ("blk.0.attn_q.weight", &[32, 32]),
        ("blk.0.attn_k.weight", &[16, 32]),
        ("blk.0.attn_v.weight", &[16, 32]),
        ("blk.0.attn_output.weight", &[32, 32]),
        ("blk.0.ffn_norm.weight", &[32]),
        ("blk.0.ffn_gate.weight", &[32, 32]),
        ("blk.0.ffn_up.weight", &[32, 32]),
        ("blk.0.ffn_down.weight", &[32, 32]),
    ];
    let tensor = |shape: &[usize]| {
        let tensor = Tensor::randn(0f32, 0.1, shape, &Device::Cpu).unwrap();
        QTensor::quantize(&tensor, if shape.len() == 2 { GgmlDType::Q8_0 } else { GgmlDType::F32 }).unwrap()
    };
    let tensors: Vec<(&str, QTensor)> = shapes.iter().map(|(name, shape)| (*name, tensor(shape))).collect();
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    gguf_file::write(&mut std::fs::File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

/// A folder with one of each, whole.
fn whole() -> &'static tempfile::TempDir {
    static WHOLE: OnceLock<tempfile::TempDir> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let reference = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/reference/dense-untied");
        for folder in ["model", "sharded"] {
            std::fs::create_dir(at(folder)).unwrap();
            std::fs::copy(reference.join("config.json"), at(folder).join("config.json")).unwrap();
        }
        std::fs::copy(reference.join("model.safetensors"), at("model/model.safetensors")).unwrap();
        std::fs::copy(reference.join("model.safetensors"), at("sharded/model-1.safetensors")).unwrap();
        let names = safetensors::SafeTensors::deserialize(&std::fs::read(at("model/model.safetensors")).unwrap())
            .unwrap()
            .names()
            .iter()
            .map(|name| (name.to_string(), "model-1.safetensors".to_string()))
            .collect::<HashMap<_, _>>();
        let index = serde_json::json!({ "metadata": {}, "weight_map": names }).to_string();
        std::fs::write(at("sharded/model.safetensors.index.json"), index).unwrap();
        std::fs::write(at("model/tokenizer.json"), byte_tokenizer()).unwrap();
        std::fs::write(at("text.txt"), "It is a truth universally acknowledged. ".repeat(9)).unwrap();
        std::fs::write(at("study.toml"), STUDY).unwrap();
        write_rows(&at("rows.safetensors"));
        write_gguf(&at("tiny.gguf"));
        let texts: Vec<String> = (0..4).map(|n| format!("book {n} ").repeat(40)).collect();
        let column = Column::from(Series::new("text".into(), texts));
        let mut table = DataFrame::new(4, vec![column]).unwrap();
        let file = std::fs::File::create(at("books.parquet")).unwrap();
        ParquetWriter::new(file).with_row_group_size(Some(1)).finish(&mut table).unwrap();
        let study = ablation(dir.path(), &["run", "study.toml", "--out", "out"]);
        assert!(study.status.success(), "{}", text(&study.stderr));
        dir
    })
}

/// A copy of the whole folder.
fn copy() -> tempfile::TempDir {
    fn all(from: &Path, to: &Path) {
        for entry in std::fs::read_dir(from).unwrap().flatten() {
            let (from, to) = (entry.path(), to.join(entry.file_name()));
            if from.is_dir() {
                std::fs::create_dir(&to).unwrap();
                all(&from, &to);
            } else {
                std::fs::copy(&from, &to).unwrap();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    all(whole().path(), dir.path());
    dir
}

#[test]
fn what_is_whole_is_read() {
    let dir = copy();
    for (file, arguments) in READERS {
        let output = in_time(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{file}: {}", text(&output.stderr));
        let _ = std::fs::remove_dir_all(dir.path().join("new"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_refused_or_harmless(
        which in 0..READERS.len(), near_the_start in any::<bool>(), with in proptest::collection::vec(any_damage(), 1..4),
    ) {
        let (file, arguments) = READERS[which];
        let dir = copy();
        let path = dir.path().join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        // Near the start of most formats stands what describes the rest.
        let rest = bytes.split_off(if near_the_start { bytes.len().min(2048) } else { bytes.len() });
        with.iter().for_each(|w| damage(&mut bytes, w));
        bytes.extend(rest);
        std::fs::write(&path, &bytes).unwrap();
        let output = in_time(dir.path(), arguments);
        let said = text(&output.stderr);
        // A damaged weight may be no number: then a run fails, and says so.
        prop_assert!(matches!(output.status.code(), Some(0..=2)), "{}: {:?}: {}", file, output.status, said);
        prop_assert!(!said.contains("panicked") && said.len() < 4000, "{}: {}", file, said);
        if output.status.code() != Some(0) {
            prop_assert!(said.contains("error: "), "{}: {}", file, said);
            prop_assert!(file == "out/losses.parquet" || !dir.path().join("new/report.html").exists());
        }
    }
}
