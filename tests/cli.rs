//! The program as a user meets it: exit codes, messages, what is left on disk.

mod program;

use std::process::Command;

use program::*;

/// failures.md 37: what the heap holds beyond the ledger is small, in every run.
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
    let records = records(&out);
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
        records(&dir.path().join(out)).comparable()
    };
    assert!(run("a") == run("b"));
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
        (&["run", "tiny.toml", "--only", "plian"], "there is no rung `plian`; `tiny` has plain, ring"),
        (&["run", "tiny.toml", "--budget", "lots"], "80GiB"),
        (&["run", "tiny.toml", "--budget", "100KiB"], "too small"),
        (&["run", "tiny.toml", "--steps", "0"], "steps"),
        (&["run", "tiny.toml", "--ranks", "3"], "multiple of 6"),
        (&["run", "tiny.toml", "--out", "a-file/out"], "--out"),
        (&["report", "nothing-here"], ".parquet"),
    ];
    let before = std::fs::read_dir(dir.path()).unwrap().count();
    for (arguments, message) in cases {
        let output = ablation(dir.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), before, "something was left behind");
    assert_eq!(ablation(dir.path(), &["run", "--nonsense"]).status.code(), Some(2));
    assert!(text(&ablation(dir.path(), &["--version"]).stdout).starts_with("ablation "));
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
    let records = records(&dir.path().join("out"));
    let failed = records.runs.iter().find(|r| r.purpose == "longest").unwrap();
    assert_eq!(failed.status, ablation::record::run::Status::Failed);
    assert!(failed.reason.contains("learning rate may be too high"), "{}", failed.reason);
}

/// What the records say can be run again from anywhere, the rung alone that ran.
#[test]
fn the_recorded_experiment_runs_again() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "a", "--only", "ring"]).status.success());
    let first = records(&dir.path().join("a"));
    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::write(elsewhere.path().join("again.toml"), &first.runs[0].experiment_toml).unwrap();
    let output = ablation(elsewhere.path(), &["run", "again.toml", "--out", "b"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(records(&elsewhere.path().join("b")).comparable() == first.comparable());
}
