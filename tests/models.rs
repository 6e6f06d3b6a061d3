//! Models in the formats that everyone uses, against the references.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use ablation::data::Tokenizer;
use ablation::model::checkpoint::Checkpoint;
use ablation::model::rope::{Rope, Yarn};
use ablation::model::safetensors::Safetensors;
use ablation::model::save::{Dtype, Model, save};
use ablation::train::evaluate::evaluate;
use ablation::train::toggles::{ContextParallel, Loss, Toggles};
use ablation::train::world::Row;
use common::*;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn save_as_f32(folder: &Path, model: &Checkpoint) {
    let Checkpoint { config, rope, .. } = model;
    save(folder, &Model { config, rope, dtype: Dtype::F32, weights: model, companions: &[] }).unwrap();
}

fn losses(model: &Checkpoint, toggles: &Toggles, row: &Row) -> Vec<f32> {
    evaluate(&model.config, toggles, model, row, &AtomicBool::new(false), &|_| {}).unwrap().losses
}

/// failures.md 1: through files, the folder's config, rope and weights give transformers'
/// losses, on one rank and on several, and again after saving.
#[test]
fn folders_give_the_references_losses() {
    for name in ["dense-untied", "dense-tied-masked", "dense-yarn4"] {
        let model = Checkpoint::open(&reference(name)).unwrap();
        let case = case(name);
        assert_eq!((&model.config, &model.rope), (&case.config, &case.rope));
        let row = &case.rows[0];
        let chunked = Toggles { loss: Loss::Chunked { rows: 32 }, tile: 32, ..toggles(model.rope.clone()) };
        let ours = losses(&model, &chunked, row);
        let labels = row.labels.as_ref().unwrap();
        for (i, expected) in case.expected["token_nll"].iter().enumerate() {
            let expected = if labels[i + 1] == ablation::device::IGNORED { 0.0 } else { *expected };
            assert!((ours[i] - expected).abs() <= 1e-4, "{name}, token {i}: {} and {expected}", ours[i]);
        }
        for (cp, ranks) in [(ContextParallel::Ring, 2), (ContextParallel::Ulysses, 2)] {
            let split = losses(&model, &Toggles { cp, ranks, ..chunked.clone() }, row);
            assert!(split.iter().zip(&ours).all(|(a, b)| (a - b).abs() <= 1e-5), "{name}, {cp:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let again = dir.path().join(name);
        save_as_f32(&again, &model);
        let again = Checkpoint::open(&again).unwrap();
        assert_eq!(again.rope, model.rope);
        assert_eq!(losses(&again, &chunked, row), ours);
    }
}

/// A saved folder, as candle-transformers reads it.
#[test]
fn candle_transformers_reads_what_is_saved() {
    use candle_core::{DType, Device};
    let model = Checkpoint::open(&reference("dense-untied")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("saved");
    save_as_f32(&folder, &model);
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config: candle_transformers::models::qwen3::Config = serde_json::from_str(&config).unwrap();
    // SAFETY: nobody else writes to the temporary folder.
    let files = [folder.join("model.safetensors")];
    let weights = unsafe { candle_nn::VarBuilder::from_mmaped_safetensors(&files, DType::F32, &Device::Cpu) }.unwrap();
    let mut theirs = candle_transformers::models::qwen3::ModelForCausalLM::new(&config, weights).unwrap();
    let mut row = case("dense-untied").rows[0].clone();
    // candle has tables of the config's 64 positions.
    row.ids.truncate(40);
    let ids = candle_core::Tensor::from_slice(&row.ids, (1, row.ids.len()), &Device::Cpu).unwrap();
    // Logits of the last position; ours from the loss of every token that could follow it.
    let logits = theirs.forward(&ids, 0).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let log_sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
    for next in [0u32, 7, 100] {
        let mut ids = row.ids.clone();
        ids.push(next);
        let ours = losses(&model, &toggles(model.rope.clone()), &Row { labels: None, ids });
        let expected = log_sum - f64::from(logits[next as usize]);
        assert!((f64::from(ours[row.ids.len() - 1]) - expected).abs() <= 1e-4);
    }
}

/// A file of the folder that ASSETS names and scripts/fetch-assets.sh fills, if it is there.
fn asset(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("ASSETS").map(|folder| PathBuf::from(folder).join(name)).filter(|path| path.is_file());
    if path.is_none() {
        eprintln!("skipped: ASSETS names no folder with {name}: run scripts/fetch-assets.sh FOLDER");
    }
    path
}

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const QWEN3: &str = "qwen3-tokenizer.json";

/// failures.md 39: six novels in pieces are the novels whole, token for token, with the
/// tokenizers of Qwen3 and of SmolLM2.
#[test]
fn novels_in_pieces_have_the_tokens_of_the_whole() {
    let qwen3 = asset(QWEN3).map(|path| {
        let whole = tokenizers::Tokenizer::from_file(&path).unwrap();
        (whole, Tokenizer::from_file(&path).unwrap())
    });
    let smollm2 = asset(SMOLLM2).map(|path| {
        let json = Checkpoint::open(&path).unwrap().tokenizer_json().unwrap();
        (tokenizers::Tokenizer::from_bytes(&json).unwrap(), Tokenizer::from_json(&json, "smollm2").unwrap())
    });
    for (name, (whole, ours)) in [("Qwen3", qwen3), ("SmolLM2", smollm2)].into_iter().filter_map(|(n, t)| Some((n, t?)))
    {
        let mut tokens = 0;
        for book in &ablation::data::books::BOOKS {
            assert!(ours.pieces(book.text).count() > 5, "{name} takes {} whole", book.name);
            let ids = ours.encode(book.text).unwrap();
            assert!(whole.encode_fast(book.text, false).unwrap().get_ids() == ids, "{name}, {}", book.name);
            assert_eq!(ours.encode_at_most(book.text, 1000).unwrap().0, ids[..1000]);
            // The length that others count for this tokenizer.
            if (name, book.name) == ("Qwen3", "emma") {
                assert_eq!(ids.len(), 212_920);
            }
            tokens += ids.len();
        }
        eprintln!("{name}: {tokens} tokens");
    }
}

/// Trained weights, from the text through the tokenizer inside the GGUF file, against a
/// forward pass in numpy: without scaling and with YaRN 2 and 4.
#[test]
fn smollm2_gives_the_references_losses() {
    let Some(path) = asset(SMOLLM2) else { return };
    let model = Checkpoint::open(&path).unwrap();
    assert_eq!(model.config.parameters(), 134_515_008);
    let tokenizer = Tokenizer::from_json(&model.tokenizer_json().unwrap(), "smollm2").unwrap();
    let expected = Safetensors::open(&[reference("smollm2/persuasion-1024.safetensors")]).unwrap();
    let ids: Vec<u32> = expected
        .bytes(expected.entry("input_ids").unwrap())
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect();
    let text = include_str!("../experiments/text/persuasion.txt");
    let (ours, _) = tokenizer.encode_at_most(text, 1024).unwrap();
    assert_eq!(ours, ids);
    let theta = model.config.rope_theta;
    let yarn = |factor| Rope::Yarn(Yarn::new(theta, factor, 8192));
    for (name, rope) in [("none", Rope::Default { theta }), ("yarn2", yarn(2.0)), ("yarn4", yarn(4.0))] {
        let name = format!("token_nll.{name}");
        let theirs = expected.bytes(expected.entry(&name).unwrap()).chunks_exact(4);
        let theirs: Vec<f32> = theirs.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let chunked = Toggles { loss: Loss::Chunked { rows: 256 }, tile: 256, ..toggles(rope) };
        let ours = losses(&model, &chunked, &Row { ids: ids.clone(), labels: None });
        let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        eprintln!("{name}: a token's loss is off by at most {worst}");
        assert!(worst <= 2e-4, "{name}: {worst}");
    }
}
