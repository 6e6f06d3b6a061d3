//! `train` and `loss` as a user meets them, against the references.

mod common;
#[path = "program/mod.rs"]
mod program;

use std::collections::HashMap;
use std::path::Path;

use ablation::device::IGNORED;
use ablation::model::checkpoint::Checkpoint;
use ablation::model::layout::units;
use ablation::parallel::shard::WeightSource;
use ablation::train::world::Row;
use ablation::verify::probe::{Tensors, farthest};
use common::case;
use program::{ablation, text};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// The rows as a file for --tokens.
fn tokens_file(path: &Path, rows: &[Row]) {
    let shape = vec![rows.len(), rows[0].ids.len()];
    let bytes =
        |of: &dyn Fn(&Row) -> Vec<i64>| -> Vec<u8> { rows.iter().flat_map(of).flat_map(i64::to_le_bytes).collect() };
    let label = |l: &u32| if *l == IGNORED { -100 } else { i64::from(*l) };
    let ids = bytes(&|r| r.ids.iter().map(|i| i64::from(*i)).collect());
    let labels = bytes(&|r| r.labels.as_ref().unwrap().iter().map(label).collect());
    let view = |bytes| TensorView::new(Dtype::I64, shape.clone(), bytes).unwrap();
    let tensors = [("input_ids", view(&ids)), ("labels", view(&labels))];
    safetensors::serialize_to_file(tensors, None::<HashMap<String, String>>, path).unwrap();
}

fn reference(name: &str) -> String {
    format!("{}/tests/reference/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Steps on given ids, from a folder to a folder: transformers' losses, norms and weights.
#[test]
fn training_a_folder_gives_the_references_steps() {
    for name in ["dense-untied", "dense-tied-masked"] {
        let (case, dir) = (case(name), tempfile::tempdir().unwrap());
        let history = case.json["optimizer"]["history"].as_array().unwrap();
        let steps = history.len();
        tokens_file(&dir.path().join("rows.safetensors"), &case.rows[..steps]);
        let (model, steps) = (reference(name), steps.to_string());
        let common = ["train", "--model", &model, "--tokens", "rows.safetensors", "--steps", &steps, "--unscaled"];
        let one = ["--learning-rate", "1e-3", "--moments", "f32", "--out", "one"];
        let output = ablation(dir.path(), &[&common[..], &one].concat());
        let said = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for (line, expected) in said.lines().zip(history) {
            let loss = format!("'loss': {:.4}", expected["loss"].as_f64().unwrap());
            assert!(line.contains(&loss), "{loss}: {line}");
        }
        let saved = Checkpoint::open(&dir.path().join("one")).unwrap();
        assert_eq!((saved.config.parameters(), &saved.rope), (case.config.parameters(), &case.rope));
        let mut weights = Tensors::new();
        for slot in units(&case.config).iter().flat_map(|u| u.slots.clone()) {
            let mut values = vec![0.0; slot.rows * slot.cols];
            saved.read(&slot, 0, &mut values).unwrap();
            weights.insert(slot.name, values);
        }
        let (tensor, off) = farthest(&weights, &case.after.unwrap());
        assert!(off <= 1e-4, "{name}: {tensor} is off by {off} after the steps");

        // On two ranks, with other toggles: the same log.
        let two = [
            "--learning-rate",
            "1e-3",
            "--moments",
            "f32",
            "--out",
            "two",
            "--cp",
            "ring",
            "--ranks",
            "2",
            "--offload",
            "host",
        ];
        let output = ablation(dir.path(), &[&common[..], &two].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let losses = |said: &str| -> Vec<String> {
            said.lines().filter_map(|l| Some(l.split_once(", 'grad_norm'")?.0.to_string())).collect()
        };
        assert_eq!(losses(&text(&output.stdout)), losses(&said));
        // What is there stays.
        let again = ablation(dir.path(), &[&common[..], &one].concat());
        assert_eq!(again.status.code(), Some(2));
        assert!(text(&again.stderr).contains("exists already"));
    }
}

#[test]
fn the_loss_of_a_folder_is_the_references() {
    for name in ["dense-untied", "dense-tied-masked", "dense-yarn4"] {
        let (case, dir) = (case(name), tempfile::tempdir().unwrap());
        tokens_file(&dir.path().join("rows.safetensors"), &case.rows[..1]);
        let arguments = ["loss", "--model", &reference(name), "--tokens", "rows.safetensors", "--json"];
        let output = ablation(dir.path(), &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let (ours, theirs) = (told["loss"].as_f64().unwrap(), case.json["loss"].as_f64().unwrap());
        assert!((ours / theirs - 1.0).abs() <= 1e-5, "{name}: {ours} and {theirs}");
        assert_eq!(told["targets"], case.json["valid_targets"]);
    }
}

/// failures.md 24: positions beyond the model's own are not trained on unscaled by mistake,
/// nor with a factor that doesn't cover them.
#[test]
fn wrong_settings_are_refused_and_leave_nothing() {
    let (case, dir) = (case("dense-untied"), tempfile::tempdir().unwrap());
    tokens_file(&dir.path().join("rows.safetensors"), &case.rows[..1]);
    std::fs::write(dir.path().join("text.txt"), "some words").unwrap();
    let model = reference("dense-untied");
    let train = ["train", "--model", &model, "--tokens", "rows.safetensors", "--out", "out"];
    let long = case.rows[0].ids.len() as u64 > case.config.max_position_embeddings;
    assert!(long, "the case is longer than its model's own length");
    let cases: [(&[&str], &str); 8] = [
        (&[], "without scaling: give --yarn"),
        (&["--yarn", "1.01"], "covers fewer than"),
        (&["--unscaled", "--steps", "0"], "steps must be positive"),
        (&["--unscaled", "--cp", "ring"], "cp is set but ranks = 1"),
        (&["--unscaled", "--ranks", "2", "--cp", "none"], "nothing would be split"),
        (&["--unscaled", "--length", "7"], "leave --length away"),
        (&["--unscaled", "--rows", "5", "--steps", "9"], "rows are there"),
        (&["--unscaled", "--budget", "10KiB"], "out of memory"),
    ];
    for (more, part) in cases {
        let output = ablation(dir.path(), &[&train[..], more].concat());
        let said = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(1 | 2)) && said.contains(part), "{more:?}: {said}");
        assert!(!dir.path().join("out").exists() && !said.contains("panicked"), "{said}");
    }
    let no_tokenizer = ablation(dir.path(), &["loss", "--model", &model, "--text", "text.txt"]);
    assert_eq!(no_tokenizer.status.code(), Some(2));
    assert!(text(&no_tokenizer.stderr).contains("tokenizer.json"));
    let nothing = ablation(dir.path(), &["loss", "--model", "nowhere", "--text", "text.txt"]);
    assert!(text(&nothing.stderr).contains("no such model"));
}
