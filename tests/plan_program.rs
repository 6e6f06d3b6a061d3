//! `ablation plan`, and what `ablation run` does with the plan.

mod program;

use ablation::record::run::Status;
use program::*;

fn plan(arguments: &[&str]) -> (Option<i32>, String, String) {
    let dir = folder();
    let all: Vec<&str> = std::iter::once("plan").chain(arguments.iter().copied()).collect();
    let out = ablation(dir.path(), &all);
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

const ONE: [&str; 6] = ["--model", "Qwen/Qwen3-8B", "--gpus", "8x80GiB", "--host", "2TiB"];

#[test]
fn a_model_is_planned_as_text_and_as_json() {
    let start = std::time::Instant::now();
    let (status, out, _) = plan(&[&ONE[..], &["--length", "1M"]].concat());
    assert!(start.elapsed().as_secs_f64() < 2.0, "{:?}", start.elapsed());
    assert_eq!(status, Some(0));
    for says in ["8,190,735,360 parameters", "weights", "pinned host memory", "H200", "H100", "fits, with"] {
        assert!(out.contains(says), "{says}: {out}");
    }
    let (status, out, _) = plan(&[&ONE[..], &["--length", "1M", "--json", "--compare"]].concat());
    assert_eq!(status, Some(0));
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["plan"]["fits"], true);
    let by_category = json["plan"]["device"]["by_category_bytes"].as_object().unwrap();
    let sum: u64 = by_category.values().map(|b| b.as_u64().unwrap()).sum();
    assert_eq!(json["plan"]["device"]["peak_bytes"], sum);
    assert!(json["compare"].as_array().unwrap().len() > 6);
    assert_eq!(json["model"]["source"], "https://huggingface.co/Qwen/Qwen3-8B/blob/main/config.json");
}

#[test]
fn the_longest_length_fits_and_the_next_does_not() {
    let one = ["--model", "Qwen3-4B", "--gpus", "1x80GiB", "--offload", "host", "--every", "1", "--keep", "inputs"];
    let json = |arguments: &[&str]| -> serde_json::Value {
        let (status, out, err) = plan(&[&one[..], arguments, &["--json"]].concat());
        assert_eq!(status, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    };
    let longest = json(&["--longest"]);
    assert_eq!(longest["plan"]["fits"], true);
    let length = longest["plan"]["length_tokens"].as_u64().unwrap();
    let next = json(&["--length", &(length + 1024).to_string()]);
    assert_eq!(next["plan"]["fits"], false);
    assert!(next["plan"]["over_device_bytes"].as_u64().unwrap() > 0);
    assert!(next["most_helpful"]["toggle"].is_string());
}

#[test]
fn kept_plans_are_what_the_program_says() {
    let one = [&ONE[..], &["--length", "1M", "--compare"]].concat();
    for (file, arguments) in [("guide", &["guide"][..]), ("node8", &["node8"]), ("8b-1m", &one)] {
        let kept = std::fs::read_to_string(format!("{}/reports/plan/{file}.txt", env!("CARGO_MANIFEST_DIR"))).unwrap();
        let (status, out, err) = plan(arguments);
        assert_eq!(status, Some(0), "{err}");
        assert_eq!(out, kept, "{file}");
    }
}

#[test]
fn every_rung_of_an_experiment_is_planned() {
    for (name, rungs) in [("guide", 5), ("node8", 4), ("small", 6)] {
        let (status, out, err) = plan(&[name, "--json"]);
        assert_eq!(status, Some(0), "{err}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(json["rungs"].as_array().unwrap().len(), rungs);
        let (status, out, _) = plan(&[name]);
        assert_eq!(status, Some(0));
        assert!(out.contains("ended by"), "{out}");
    }
}

#[test]
fn wrong_input_is_said() {
    fn with<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
        [&["--model", "Qwen3-4B"], arguments].concat()
    }
    for (arguments, says) in [
        (with(&["--length", "1M"]), "--gpus is missing"),
        (with(&["--gpus", "1x80GiB"]), "--length"),
        (with(&["--gpus", "80GiB", "--length", "1M"]), "8x80GiB"),
        (with(&["--gpus", "0x80GiB", "--length", "1M"]), "8x80GiB"),
        (with(&["--gpus", "3x80GiB", "--length", "1M", "--cp", "ulysses"]), "3 does not divide"),
        (with(&["--gpus", "1024x80GiB", "--length", "1M"]), "from 1 to 512"),
        (with(&["--gpus", "1x80GiB", "--length", "1M", "--loss", "full", "--chunk-rows", "64"]), "would be ignored"),
        (with(&["--gpus", "1x80GiB", "--length", "4096M"]), "tokens"),
        (with(&["--gpus", "1x80GiB", "--length", "1M", "--every", "two"]), "--every two"),
        (with(&["--gpus", "1x80GiB", "--length", "1M", "--yarn", "0.5"]), "1 or more"),
        (with(&["--gpus", "1x80GiB", "--length", "1M", "--ceilings", "none.toml"]), "none.toml"),
        (vec!["--model", "Qwen/Qwen3-5B", "--gpus", "1x80GiB", "--length", "1M"], "Qwen/Qwen3-32B"),
        (vec!["none.toml"], "small, guide, node8"),
        // What would be ignored beside an experiment.
        (vec!["guide", "--loss", "full"], "--model"),
        (vec!["guide", "--yarn", "4"], "--model"),
        (vec!["guide", "--gpus", "1x80GiB"], "--model"),
        (with(&["guide"]), "not both"),
    ] {
        let (status, out, err) = plan(&arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {out}{err}");
        assert!(err.contains(says), "{arguments:?}: {err}");
    }
}

/// A rung of which not even the shortest length fits is refused with the table, and the
/// others run.
#[test]
fn what_cannot_fit_is_refused_before_it_starts() {
    let dir = folder();
    let ladder = TINY.replacen("grid = 4\ncurve = [4]", "grid = 4096", 1);
    std::fs::write(dir.path().join("tiny.toml"), ladder).unwrap();
    let out = ablation(dir.path(), &["run", "tiny.toml", "--out", "out"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let err = text(&out.stderr);
    assert!(err.contains("refused: plain at 4,096 tokens") && err.contains("plan: ring at 52 tokens"), "{err}");
    let records = records(&dir.path().join("out"));
    let plain = records.runs.iter().find(|r| r.rung == "plain").unwrap();
    assert_eq!(plain.status, Status::Refused);
    // The first buffer that has no room, with the table.
    for says in ["asked for layer inputs", "moments", "what would free it"] {
        assert!(plain.reason.contains(says), "{}", plain.reason);
    }
    assert!(plain.step_seconds.is_empty() && plain.peak_device_bytes == 0);
    assert!(plain.predicted_peak_device_bytes > plain.budget_bytes.unwrap());
    let beyond = records.runs.iter().find(|r| r.purpose == "beyond").unwrap();
    assert_eq!((beyond.rung.as_str(), beyond.status), ("ring", Status::OutOfMemory));
    let ring: Vec<_> = records.runs.iter().filter(|r| r.rung == "ring" && r.purpose != "beyond").collect();
    assert!(ring.len() > 1);
    for run in ring {
        assert_eq!(run.status, Status::Ok);
        assert_eq!(run.predicted_at_peak_device, Some(run.at_peak_device));
        assert_eq!(run.predicted_at_peak_host, Some(run.at_peak_host));
    }
}

/// What an experiment leaves to the plan is chosen at each length, run, and recorded.
#[test]
fn what_the_plan_chooses_is_recorded() {
    let dir = folder();
    let ladder = TINY.replacen("chunk_rows = 32", "chunk_rows = 32\nkeep = \"auto\"\noffload = \"auto\"", 1);
    std::fs::write(dir.path().join("tiny.toml"), ladder).unwrap();
    let out = ablation(dir.path(), &["run", "tiny.toml", "--only", "ring", "--out", "out"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("chosen: inputs of 2 layers"), "{}", text(&out.stderr));
    let records = records(&dir.path().join("out"));
    let longest = records.runs.iter().find(|r| r.purpose == "longest").unwrap();
    assert_eq!((longest.keep.as_str(), longest.keep_attention_layers), ("attention", Some(2)));
    assert_eq!(longest.predicted_at_peak_device, Some(longest.at_peak_device));
}
