//! Runs that are killed, interrupted or hindered, and those that go on from there.
#![cfg(unix)]

mod program;

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ablation::record::run::Status;
use program::*;

/// Starts the program without waiting for it.
fn start(dir: &Path, arguments: &[&str]) -> Child {
    command(dir, arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let kill = std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
}

fn wait_for(path: &Path) {
    let patience = Instant::now();
    while !path.exists() {
        assert!(patience.elapsed().as_secs() < 60, "{} did not come", path.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Killed again and again, at moments that move through the whole run: what ended is
/// there and is read, and the last part ends with the records of an unbroken run.
#[test]
fn a_killed_ladder_goes_on_to_the_same_records() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "whole"]).status.success());
    let whole = records(&dir.path().join("whole")).comparable();
    let out = dir.path().join("out");
    let mut done = 0;
    for round in 0..12u64 {
        let begun = out.join("experiment.toml").exists();
        let arguments: &[&str] =
            if begun { &["run", "--resume", "--out", "out"] } else { &["run", "tiny.toml", "--out", "out"] };
        let mut child = start(dir.path(), arguments);
        std::thread::sleep(Duration::from_millis(30 + 25 * round));
        let _ = child.kill();
        child.wait().unwrap();
        if out.join("runs.parquet").exists() {
            let runs = records(&out).runs;
            assert!(runs.len() >= done, "a run was lost");
            done = runs.len();
            assert!(
                runs.iter()
                    .enumerate()
                    .all(|(i, r)| r.run as usize == i && !r.loss.is_empty() || r.status != Status::Ok)
            );
            assert!(ablation(dir.path(), &["report", "out"]).status.success());
        }
    }
    let begun = out.join("experiment.toml").exists();
    let last: &[&str] =
        if begun { &["run", "--resume", "--out", "out"] } else { &["run", "tiny.toml", "--out", "out"] };
    let output = ablation(dir.path(), last);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(records(&out).comparable() == whole);
    let names = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|n| !n.ends_with(".partial") && !n.starts_with('.')));
    // Once more: there is nothing left to do.
    let again = ablation(dir.path(), &["run", "tiny.toml", "--resume", "--out", "out"]);
    assert!(again.status.success() && !text(&again.stderr).contains("[1/"), "{}", text(&again.stderr));
    assert!(records(&out).comparable() == whole);
}

/// What was begun with another experiment, text or program is refused, and left as it is.
#[test]
fn another_ladder_is_not_gone_on_with() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "out", "--only", "ring"]).status.success());
    let before = std::fs::read(dir.path().join("out/runs.parquet")).unwrap();
    let refused = |arguments: &[&str], message: &str| {
        let output = ablation(dir.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(message), "{message}: {said}");
        assert_eq!(std::fs::read(dir.path().join("out/runs.parquet")).unwrap(), before);
    };
    refused(&["run", "tiny.toml", "--resume", "--out", "out"], "another experiment");
    refused(&["run", "--resume", "--out", "out", "--seed", "2"], "line 4: `seed = 1` there, `seed = 2` here");
    refused(&["run", "--resume", "--out", "nowhere"], "there is no ladder to go on with");
    refused(&["run", "tiny.toml", "--resume"], "there is no ablation-tiny here");
    refused(&["run", "tiny.toml", "--out", "out"], "--resume");
    let words = std::fs::read_to_string(dir.path().join("text.txt")).unwrap();
    std::fs::write(dir.path().join("text.txt"), words.replacen("Emma", "Anna", 1)).unwrap();
    refused(&["run", "--resume", "--out", "out"], "the text or its tokenizer has changed");
    std::fs::write(dir.path().join("text.txt"), &words).unwrap();

    // Another program: the digest of its file says so.
    let mut changed = records(&dir.path().join("out"));
    changed.runs[0].program_sha256 = Some("0".repeat(64));
    changed.write(&dir.path().join("out")).unwrap();
    let output = ablation(dir.path(), &["run", "--resume", "--out", "out"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("of another program"), "{}", text(&output.stderr));
}

/// A run that failed is run again; the others stay as they are.
#[test]
fn what_failed_runs_again() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "out"]).status.success());
    let out = dir.path().join("out");
    let whole = records(&out);
    let mut broken = whole.clone();
    broken.runs[1].status = Status::Failed;
    broken.runs[1].loss.clear();
    broken.write(&out).unwrap();
    let output = ablation(dir.path(), &["run", "--resume", "--out", "out"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mended = records(&out);
    assert!(mended.comparable() == whole.comparable());
    for (i, (ours, theirs)) in mended.runs.iter().zip(&whole.runs).enumerate() {
        assert_eq!(ours.started_unix_ms == theirs.started_unix_ms, i != 1, "run {i}");
    }
}

/// Ctrl-C ends the run within two seconds; what is done is on disk, whole, and reported.
#[test]
fn an_interrupt_keeps_what_is_done() {
    let dir = folder();
    let mut child = start(dir.path(), &["run", "tiny.toml", "--out", "out", "--steps", "100000", "--only", "ring"]);
    wait_for(&dir.path().join("out/runs.parquet"));
    signal(&child, "-INT");
    let asked = Instant::now();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(asked.elapsed().as_secs() < 20, "on a machine as busy as this, ten times what is promised");
    let kept = records(&dir.path().join("out"));
    assert!(!kept.runs.is_empty() && kept.runs.iter().all(|r| r.purpose == "curve"));
    assert!(dir.path().join("out/report.html").exists());
}

/// The second of two runs into one folder is refused, and the first goes on.
#[test]
fn two_runs_into_one_folder() {
    let dir = folder();
    let arguments = ["run", "tiny.toml", "--out", "out", "--steps", "100000", "--only", "ring"];
    let mut first = start(dir.path(), &arguments);
    wait_for(&dir.path().join("out/experiment.toml"));
    let second = ablation(dir.path(), &["run", "--resume", "--out", "out"]);
    assert_eq!(second.status.code(), Some(2));
    assert!(text(&second.stderr).contains("another run is writing to it"), "{}", text(&second.stderr));
    assert!(first.try_wait().unwrap().is_none(), "the first run ended");
    first.kill().unwrap();
    first.wait().unwrap();
    // The lock goes with the process: the next one is let in.
    let mut third = start(dir.path(), &["run", "--resume", "--out", "out"]);
    std::thread::sleep(Duration::from_millis(300));
    assert!(third.try_wait().unwrap().is_none());
    third.kill().unwrap();
    third.wait().unwrap();
}

#[test]
fn a_folder_with_other_things_is_left_alone() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("photos")).unwrap();
    std::fs::write(dir.path().join("photos/cat.jpg"), b"cat").unwrap();
    let output = ablation(dir.path(), &["run", "tiny.toml", "--out", "photos"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cat.jpg"), "{}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(dir.path().join("photos")).unwrap().count(), 1);
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "empty", "--only", "ring"]).status.success());
}

/// No room for a file: the run ends with a message, what was whole stays whole, and with
/// room again it goes on. (A limit on a file's size stands for the full disk.)
#[test]
fn a_full_disk_loses_nothing() {
    let dir = folder();
    let program = env!("CARGO_BIN_EXE_ablation");
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "whole"]).status.success());
    // Blocks of 512 or 1024 bytes: too few for the records of all runs.
    let size = std::fs::metadata(dir.path().join("whole/timeline.parquet")).unwrap().len();
    let blocks = size / 1024 - 1;
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec {program} run tiny.toml --out out");
    let output = std::process::Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("could not write out/") && said.contains("--resume"), "{said}");
    let out = dir.path().join("out");
    let partial = std::fs::read_dir(&out)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|x| x == "partial"));
    assert_eq!(partial.count(), 0);
    let output = ablation(dir.path(), &["run", "--resume", "--out", "out"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(records(&out).comparable() == records(&dir.path().join("whole")).comparable());
}

#[test]
fn a_folder_that_cannot_be_written_to_is_said_at_once() {
    let dir = folder();
    // Not even the superuser makes files there.
    let output = ablation(dir.path(), &["run", "tiny.toml", "--out", "/proc/ablation"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("give a folder that can be written to"), "{}", text(&output.stderr));
}
