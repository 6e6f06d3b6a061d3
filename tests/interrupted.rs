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
            for (i, run) in runs.iter().enumerate() {
                assert_eq!(run.run as usize, i);
                assert!(run.status == Status::OutOfMemory || !run.loss.is_empty());
            }
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
    refused(&["run", "tiny.toml", "--resume"], "there is no folder ablation-tiny with a ladder here");
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

/// Also in the middle of a long step: the default ladder's longest takes seconds.
#[test]
fn an_interrupt_in_a_long_step() {
    let dir = folder();
    let mut child = start(dir.path(), &["run", "small", "--out", "out", "--only", "ulysses", "--steps", "50"]);
    wait_for(&dir.path().join("out/runs.parquet"));
    // Into the third and longest of its runs.
    let patience = Instant::now();
    while records(&dir.path().join("out")).runs.len() < 2 {
        assert!(patience.elapsed().as_secs() < 120);
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(700));
    signal(&child, "-TERM");
    let asked = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed().as_secs() < 20, "{:?}: two seconds are promised, on a machine less busy", asked.elapsed());
    assert_eq!(records(&dir.path().join("out")).runs.len(), 2);
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
    // The lock goes with the process: the next one is let in, where it would else give up
    // after a second.
    let mut third = start(dir.path(), &["run", "--resume", "--out", "out"]);
    std::thread::sleep(Duration::from_millis(2500));
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

/// No room for a file, whichever it is: the run ends with a message, what was whole stays
/// whole, and with room again it goes on. (A limit on a file's size stands for the full disk.)
#[test]
fn a_full_disk_loses_nothing() {
    let dir = folder();
    let program = env!("CARGO_BIN_EXE_ablation");
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "whole"]).status.success());
    let whole = records(&dir.path().join("whole")).comparable();
    // Blocks of 1024 bytes: too few for the experiment's file, for the records of some
    // runs, for the figures.
    let size = std::fs::metadata(dir.path().join("whole/timeline.parquet")).unwrap().len() / 1024;
    for (number, blocks) in [0, size / 2, size - 1, size + 8].into_iter().enumerate() {
        let name = format!("out-{number}");
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec {program} run tiny.toml --out {name}");
        let output = std::process::Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(if number == 0 { 2 } else { 1 }), "{blocks} blocks: {said}");
        assert!(said.contains(&format!("could not write {name}/")), "{blocks} blocks: {said}");
        assert!(number == 0 || number == 3 || said.contains("--resume"), "{blocks} blocks: {said}");
        let out = dir.path().join(&name);
        let files = std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path());
        assert_eq!(files.filter(|f| f.extension().is_some_and(|x| x == "partial")).count(), 0);
        let begin = ["run", "tiny.toml", "--out", &name];
        let go_on = ["run", "--resume", "--out", &name];
        let output = ablation(dir.path(), if number == 0 { &begin } else { &go_on });
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(records(&out).comparable() == whole);
    }
}

/// A run that was killed as it began leaves a folder that the next one begins anew in.
#[test]
fn what_a_killed_beginning_leaves_is_no_ladder() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("out")).unwrap();
    std::fs::write(dir.path().join("out/experiment.toml.partial"), "name =").unwrap();
    let output = ablation(dir.path(), &["run", "tiny.toml", "--out", "out", "--only", "ring"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Without --out, the folder that was written to last goes on; the experiment's file may
/// be spelt otherwise, and stand in the records alone.
#[test]
fn resume_finds_its_folder_and_its_experiment() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--only", "ring"]).status.success());
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--only", "ring", "--seed", "2"]).status.success());
    let (first, second) = (dir.path().join("ablation-tiny"), dir.path().join("ablation-tiny-2"));
    let before = records(&second).comparable();
    let output = ablation(dir.path(), &["run", "--resume"]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("ablation-tiny-2: 5 of 5"), "{said}");
    assert!(records(&second).comparable() == before);
    // As a person might write the same.
    let kept = std::fs::read_to_string(first.join("experiment.toml")).unwrap();
    let spelt = kept.replace("budget = 716800", "budget = \"700KiB\"").replace('\n', "\r\n");
    assert_ne!(kept.lines().collect::<Vec<_>>(), spelt.lines().collect::<Vec<_>>());
    std::fs::write(first.join("experiment.toml"), format!("# mine\r\n{spelt}")).unwrap();
    let again = || ablation(dir.path(), &["run", "--resume", "--out", "ablation-tiny"]);
    assert!(again().status.success(), "{}", text(&again().stderr));
    std::fs::remove_file(first.join("experiment.toml")).unwrap();
    assert!(again().status.success(), "{}", text(&again().stderr));
    assert!(first.join("experiment.toml").exists());
    // Through a link, with the experiment named.
    std::os::unix::fs::symlink(dir.path(), dir.path().join("link")).unwrap();
    let arguments = ["run", "link/tiny.toml", "--only", "ring", "--resume", "--out", "link/ablation-tiny"];
    let linked = ablation(dir.path(), &arguments);
    assert!(linked.status.success(), "{}", text(&linked.stderr));
}

/// A folder whose name is no UTF-8 is run in, and gone on with.
#[test]
#[cfg(target_os = "linux")]
fn names_that_are_no_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let dir = folder();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    for resume in [false, true] {
        let mut run = command(dir.path(), &["run", "--out"]);
        run.arg(name);
        run.arg(if resume { "--resume" } else { "tiny.toml" });
        let output = run.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// Two runs that begin at once in one new folder: one of them writes to it.
#[test]
fn two_runs_that_begin_at_once() {
    let dir = folder();
    let arguments = ["run", "tiny.toml", "--out", "out", "--only", "ring"];
    let children: Vec<Child> = (0..3).map(|_| start(dir.path(), &arguments)).collect();
    let ended: Vec<Option<i32>> = children.into_iter().map(|mut c| c.wait().unwrap().code()).collect();
    assert_eq!(ended.iter().filter(|code| **code == Some(0)).count(), 1, "{ended:?}");
    assert_eq!(ended.iter().filter(|code| **code == Some(2)).count(), 2, "{ended:?}");
    assert_eq!(records(&dir.path().join("out")).runs.len(), 5);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_said_at_once() {
    let dir = folder();
    // Not even the superuser makes files there.
    let output = ablation(dir.path(), &["run", "tiny.toml", "--out", "/proc/ablation"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("give a folder that can be written to"), "{}", text(&output.stderr));
}
