//! Studies of the loss by position: run, resumed, rendered, and held to others' figures.

mod program;

use std::path::Path;

use ablation::record::losses::{LossBand, read_losses, write_losses};
use program::*;

/// A folder with a model, a tokenizer whose ids are bytes, a text and a study of it.
fn study_folder() -> tempfile::TempDir {
    let dir = folder();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/dense-untied");
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(reference.join(file), model.join(file)).unwrap();
    }
    std::fs::write(model.join("tokenizer.json"), byte_tokenizer()).unwrap();
    std::fs::write(dir.path().join("text.txt"), "a b c d e f g h i j ".repeat(20)).unwrap();
    std::fs::write(dir.path().join("study.toml"), STUDY).unwrap();
    dir
}

const STUDY: &str = r#"
name = "short"
title = "A short study"
description = "A tiny model beyond its 64 tokens."
model = "model"
length = 128
[text]
path = "text.txt"
offset = 2
[[setting]]
name = "no scaling"
[[setting]]
name = "YaRN 2"
yarn = { factor = 2.0 }
"#;

#[test]
fn a_study_is_run_rendered_and_gone_on_with() {
    let dir = study_folder();
    let out = ablation(dir.path(), &["run", "study.toml", "--out", "out"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let said = text(&out.stderr);
    assert!(said.contains("note: no scaling: ") && said.contains("give --yarn 2"), "{said}");
    assert!(text(&out.stdout).contains("beyond its 64 tokens"), "{}", text(&out.stdout));
    let folder = dir.path().join("out");
    let bands = read_losses(&folder).unwrap();
    assert_eq!(bands.len(), 64);
    let (own, yarn): (Vec<&LossBand>, Vec<&LossBand>) = bands.iter().partition(|b| b.setting == "no scaling");
    assert_eq!((own.len(), yarn[0].yarn_factor, yarn[0].yarn_original_tokens), (32, Some(2.0), Some(64)));
    assert_eq!((own[31].end_token, own[0].valid_targets, own[31].targets), (128, 127, 3));
    let sum: f64 = own.iter().map(|b| b.band_loss.unwrap() * b.targets as f64).sum();
    assert!((sum / 127.0 - own[0].mean_loss).abs() < 1e-9);
    let last = own[28..].iter().map(|b| b.band_loss.unwrap() * b.targets as f64).sum::<f64>() / 15.0;
    assert!((last - own[0].last_eighth_loss.unwrap()).abs() < 1e-9);
    assert_eq!((own[0].tokens_sha256.len(), own[0].characters), (64, Some(128)));
    // The page needs nothing beside it and says what it rests on.
    let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
    for part in ["<svg", "A short study", "[[setting]]", &own[0].tokens_sha256] {
        assert!(page.contains(part), "{part}");
    }
    let markdown = std::fs::read_to_string(folder.join("report.md")).unwrap();
    assert!(markdown.contains("figures/losses.svg") || markdown.contains("figures/losses.png"), "{markdown}");

    // What is lost runs again, what is there stays.
    let kept: Vec<LossBand> = own.into_iter().cloned().collect();
    write_losses(&folder, &kept).unwrap();
    let again = ablation(dir.path(), &["run", "--resume", "--out", "out"]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(!text(&again.stderr).contains("[1/2]") && text(&again.stderr).contains("[2/2]"));
    let strip = |mut b: LossBand| {
        (b.seconds, b.started_unix_ms) = (0.0, 0);
        b
    };
    let whole: Vec<LossBand> = read_losses(&folder).unwrap().into_iter().map(strip).collect();
    assert_eq!(whole, bands.into_iter().map(strip).collect::<Vec<_>>());
    // Not with another length.
    let other = ablation(dir.path(), &["run", "study.toml", "--resume", "--out", "out", "--length", "64"]);
    assert_eq!(other.status.code(), Some(2), "{}", text(&other.stderr));
    assert!(text(&other.stderr).contains("another study"), "{}", text(&other.stderr));
}

#[test]
fn loss_leaves_a_folder_with_a_figure() {
    let dir = study_folder();
    let loss = ["loss", "--model", "model", "--text", "text.txt", "--length", "64"];
    let out = ablation(dir.path(), &loss);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("from token") && text(&out.stdout).contains("ablation-loss/report.html"));
    assert!(dir.path().join("ablation-loss/figures/losses.png").is_file());
    let out = ablation(dir.path(), &[&loss[..], &["--json"]].concat());
    assert_eq!(out.status.code(), Some(0));
    assert!(!dir.path().join("ablation-loss-2").exists());
}

#[test]
fn wrong_input_is_said_and_leaves_nothing() {
    let dir = study_folder();
    let write =
        |from: &str, to: &str| std::fs::write(dir.path().join("wrong.toml"), STUDY.replacen(from, to, 1)).unwrap();
    write("offset = 2", "offset = 2000");
    for (arguments, part) in [
        (&["run", "wrong.toml"][..], "fewer than 2001 characters"),
        (&["run", "study.toml", "--length", "1000"], "1000 were asked for"),
        (&["run", "study.toml", "--budget", "1GiB"], "--budget is for ladders"),
        (&["run", "study.toml", "--only", "YaRN"], "no setting `YaRN`"),
        (&["run", "study.toml", "--model", "nowhere"], "no such model"),
        (&["run", "tiny.toml", "--model", "model"], "--model is for studies"),
        (&["run", "tiny.toml", "--length", "64"], "--length is for studies"),
    ] {
        let out = ablation(dir.path(), arguments);
        assert_eq!(out.status.code(), Some(2), "{arguments:?}: {}", text(&out.stderr));
        assert!(text(&out.stderr).contains(part), "{arguments:?}: {}", text(&out.stderr));
    }
    let left = std::fs::read_dir(dir.path()).unwrap().flatten().filter(|e| e.file_name() != "model");
    let left: Vec<_> =
        left.map(|e| e.file_name().to_string_lossy().into_owned()).filter(|n| n.starts_with("ablation")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The kept study of SmolLM2 on *Emma*, against an independent forward pass in numpy
/// (float32): nats a token in bands of 2,048, to 0.005.
#[test]
fn the_kept_study_has_the_references_losses() {
    const NONE: [f64; 8] = [3.376, 3.486, 3.236, 3.102, 3.227, 3.842, 5.082, 6.030];
    const YARN2: [f64; 8] = [3.409, 3.509, 3.255, 3.128, 3.247, 3.370, 3.345, 3.263];
    const YARN4: [f64; 8] = [3.485, 3.604, 3.370, 3.221, 3.337, 3.450, 3.481, 3.406];
    let bands = read_losses(&Path::new(env!("CARGO_MANIFEST_DIR")).join("reports/yarn")).unwrap();
    for (setting, expected) in [("no scaling", NONE), ("YaRN 2", YARN2), ("YaRN 4", YARN4)] {
        let of: Vec<&LossBand> = bands.iter().filter(|b| b.setting == setting).collect();
        for (i, expected) in expected.into_iter().enumerate() {
            let (from, to) = (2048 * i as u64, 2048 * (i as u64 + 1));
            let within: Vec<&&LossBand> = of.iter().filter(|b| b.start_token >= from && b.end_token <= to).collect();
            assert_eq!(within.iter().map(|b| b.end_token - b.start_token).sum::<u64>(), 2048, "{setting}, {from}");
            let targets: u64 = within.iter().map(|b| b.targets).sum();
            let sum: f64 = within.iter().map(|b| b.band_loss.unwrap() * b.targets as f64).sum();
            let ours = sum / targets as f64;
            assert!((ours - expected).abs() <= 0.005, "{setting}, from {from}: {ours:.4} where {expected} is right");
        }
    }
}
