//! The program as a user meets it: exit codes, messages, what is left on disk.

use std::path::Path;
use std::process::{Command, Output};

/// A ladder of a second.
const TINY: &str = r#"
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

fn ablation(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ablation")).args(arguments).current_dir(dir).output().unwrap()
}

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("tiny.toml"), TINY).unwrap();
    let text = include_str!("../experiments/text/emma.txt");
    std::fs::write(dir.path().join("text.txt"), &text[..4000]).unwrap();
    dir
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_ladder_leaves_records_figures_and_a_page_that_needs_nothing_else() {
    let dir = folder();
    let output = ablation(dir.path(), &["run", "tiny.toml", "--out", "out"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(said.contains("plain") && said.contains("ring") && said.contains("out/report.html"), "{said}");
    let out = dir.path().join("out");
    for file in [
        "runs.parquet",
        "timeline.parquet",
        "positions.parquet",
        "report.md",
        "figures/ladder.svg",
        "figures/ladder.png",
    ] {
        assert!(out.join(file).metadata().unwrap().len() > 100, "{file}");
    }
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("nothing &lt;yet&gt; | a pipe"), "text of the user's is escaped");
    for outside in ["<script", "src=\"http", "href=\"http", "@import", "url(http", "<link"] {
        assert!(!page.contains(outside), "the page reaches for {outside}");
    }
    let records = ablation::record::Records::read(&out).unwrap();
    let beyond = records.runs.iter().find(|r| r.purpose == "beyond").unwrap();
    assert_eq!(beyond.status, ablation::record::run::Status::OutOfMemory);
    assert!(beyond.reason.contains("loss = \"chunked\""), "{}", beyond.reason);
    // The heap agrees with the ledger: within 2 % or 1 MiB. The plan equals it.
    for run in records.runs.iter().filter(|r| r.status == ablation::record::run::Status::Ok) {
        let (ledger, heap) = (run.peak_process_ledger_bytes, run.peak_process_measured_bytes);
        assert!(heap >= ledger && heap - ledger <= (ledger / 50).max(1 << 20), "{}: {ledger} and {heap}", run.rung);
        assert_eq!(run.peak_device_bytes, run.predicted_peak_device_bytes);
        assert_eq!(run.peak_host_bytes, run.predicted_peak_host_bytes);
    }
    assert!(records.runs.iter().any(|r| r.rung == "ring" && r.ranks == 2 && r.loss.len() == 2));

    // The report again, from the Parquet alone: the same page.
    std::fs::remove_dir_all(out.join("figures")).unwrap();
    std::fs::remove_file(out.join("report.html")).unwrap();
    assert!(ablation(dir.path(), &["report", "out"]).status.success());
    assert_eq!(std::fs::read_to_string(out.join("report.html")).unwrap(), page);

    // A folder with records isn't written over.
    let again = ablation(dir.path(), &["run", "tiny.toml", "--out", "out"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("would be lost"), "{}", text(&again.stderr));
}

/// Same seed, same setting: the same losses, norms and bytes.
#[test]
fn the_same_ladder_twice_leaves_the_same_records() {
    let dir = folder();
    let run = |out: &str| {
        assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", out]).status.success());
        ablation::record::Records::read(&dir.path().join(out)).unwrap()
    };
    let (a, b) = (run("a"), run("b"));
    assert_eq!(a.positions, b.positions);
    for (a, b) in a.runs.iter().zip(&b.runs) {
        assert_eq!((&a.loss, &a.gradient_norm, a.at_peak_device), (&b.loss, &b.gradient_norm, b.at_peak_device));
    }
}

#[test]
fn bad_input_is_one_message_and_leaves_nothing() {
    let dir = folder();
    std::fs::write(dir.path().join("bad.toml"), TINY.replace("seed = 1", "sede = 1")).unwrap();
    std::fs::write(dir.path().join("missing.toml"), TINY.replace("text.txt", "no.txt")).unwrap();
    std::fs::write(dir.path().join("short.toml"), TINY.replace("stop_at = 64", "stop_at = 6400")).unwrap();
    std::fs::write(dir.path().join("vocabulary.toml"), TINY.replace("vocab_size = 2048", "vocab_size = 100")).unwrap();
    std::fs::write(dir.path().join("a-file"), "").unwrap();
    let cases: [(&[&str], &str); 12] = [
        (&["run", "bad.toml"], "bad.toml:4:1: unknown field `sede`"),
        (&["run", "nowhere.toml"], "one of the built-in: small"),
        (&["run", "missing.toml"], "no.txt"),
        (&["run", "short.toml", "--budget", "64MiB"], "tokens"),
        (&["run", "vocabulary.toml"], "vocab_size"),
        (&["run", "tiny.toml", "--only", "plian"], "there is no rung `plian`; `tiny.toml` has plain, ring"),
        (&["run", "tiny.toml", "--budget", "lots"], "80GiB"),
        (&["run", "tiny.toml", "--budget", "100KiB"], "too small"),
        (&["run", "tiny.toml", "--steps", "0"], "steps"),
        (&["run", "tiny.toml", "--ranks", "3"], "multiple of 6"),
        (&["run", "tiny.toml", "--out", "a-file/out"], "--out"),
        (&["report", "nothing-here"], "runs.parquet"),
    ];
    let before = std::fs::read_dir(dir.path()).unwrap().count();
    for (arguments, message) in cases {
        let output = ablation(dir.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(
            said.contains(message) || message == "runs.parquet" && said.contains(".parquet"),
            "{arguments:?}: {said}"
        );
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before, "something was left behind");
    assert_eq!(ablation(dir.path(), &["run", "--nonsense"]).status.code(), Some(2));
    assert!(text(&ablation(dir.path(), &["--version"]).stdout).starts_with("ablation "));
}

/// Ctrl-C ends the run within a layer; what is done is on disk, whole, and reported.
#[test]
#[cfg(unix)]
fn an_interrupt_keeps_what_is_done() {
    let dir = folder();
    let mut child = Command::new(env!("CARGO_BIN_EXE_ablation"))
        .args(["run", "tiny.toml", "--out", "out", "--steps", "100000", "--only", "ring"])
        .current_dir(dir.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let runs = dir.path().join("out/runs.parquet");
    let patience = std::time::Instant::now();
    while !runs.exists() {
        assert!(patience.elapsed().as_secs() < 60, "no run was recorded");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let records = ablation::record::Records::read(&dir.path().join("out")).unwrap();
    assert!(!records.runs.is_empty() && records.runs.iter().all(|r| r.purpose == "curve"));
    assert!(dir.path().join("out/report.html").exists());
}

/// A reader of the log that has gone away ends nothing.
#[test]
#[cfg(target_os = "linux")]
fn a_log_that_cannot_be_written_ends_no_run() {
    let dir = folder();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ablation"));
    let status = command.args(["run", "tiny.toml", "--out", "out"]).current_dir(dir.path()).stderr(full).output();
    assert!(status.unwrap().status.success());
    assert!(dir.path().join("out/report.html").exists());
}

/// A loss that is no number is a failed run, not a result.
#[test]
fn training_that_diverges_fails() {
    let dir = folder();
    std::fs::write(dir.path().join("hot.toml"), TINY.replace("steps = 2", "steps = 6\nlearning_rate = 1e30")).unwrap();
    let output = ablation(dir.path(), &["run", "hot.toml", "--out", "out", "--only", "plain"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let records = ablation::record::Records::read(&dir.path().join("out")).unwrap();
    let failed = records.runs.iter().find(|r| r.purpose == "longest").unwrap();
    assert_eq!(failed.status, ablation::record::run::Status::Failed);
    assert!(failed.reason.contains("learning rate may be too high"), "{}", failed.reason);
}

/// What the records say can be run again from anywhere, the rung alone that ran.
#[test]
fn the_recorded_experiment_runs_again() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "a", "--only", "ring"]).status.success());
    let first = ablation::record::Records::read(&dir.path().join("a")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("again.toml"), &first.runs[0].experiment_toml).unwrap();
    let output = ablation(elsewhere.path(), &["run", "again.toml", "--out", "b"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let again = ablation::record::Records::read(&elsewhere.path().join("b")).unwrap();
    assert_eq!(again.positions, first.positions);
    assert_eq!(again.runs.len(), first.runs.len());
}
