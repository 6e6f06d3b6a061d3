//! Input that means ill: each ends as bad input with a message that says where, or is
//! harmless; nothing panics, aborts, hangs or fills memory.
//!
//! `PROPTEST_CASES=5000 cargo test --release --test hostile` goes on for longer.
#![cfg(unix)]

mod damage;
mod program;

use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;

use damage::*;
use program::*;
use proptest::prelude::*;

/// Bad input: status 2 and a message with `parts`.
fn refused(dir: &Path, arguments: &[&str], parts: &[&str]) {
    let output = in_time(dir, arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(said.len() < 2000 && !said.contains("panicked"), "{arguments:?}: {said}");
    parts.iter().for_each(|part| assert!(said.contains(part), "{arguments:?}: {said}"));
}

#[test]
fn files_that_are_no_experiments() {
    let dir = folder();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("brackets.toml", "[".repeat(10 << 20).as_bytes());
    write("braces.toml", "a = ".to_string().chars().chain("{".repeat(10 << 20).chars()).collect::<String>().as_bytes());
    write("latin.toml", b"name = \"caf\xe9\"");
    write("nul.toml", &[0; 4096]);
    write("empty.toml", b"");
    write("long.toml", format!("name = \"{}\"", "x".repeat(20 << 20)).as_bytes());
    write("text.toml", &TINY.as_bytes()[..400]);
    write("page.toml", b"<html><body>404</body></html>");
    refused(dir.path(), &["run", "brackets.toml"], &["brackets.toml", "nested more than 64 deep"]);
    refused(dir.path(), &["run", "braces.toml"], &["braces.toml", "nested more than 64 deep"]);
    refused(dir.path(), &["run", "latin.toml"], &["latin.toml", "UTF-8"]);
    refused(dir.path(), &["run", "nul.toml"], &["nul.toml:1:"]);
    refused(dir.path(), &["run", "empty.toml"], &["empty.toml", "missing field `name`"]);
    refused(dir.path(), &["run", "long.toml"], &["long.toml", "larger than"]);
    refused(dir.path(), &["run", "text.toml"], &["text.toml"]);
    refused(dir.path(), &["run", "page.toml"], &["page.toml:1:"]);
    refused(dir.path(), &["run", "."], &["`.`: ", "give an experiment file"]);
    refused(dir.path(), &["run", "/dev/zero"], &["/dev/zero", "larger than"]);
}

#[test]
fn texts_that_are_none() {
    let dir = folder();
    for (bytes, part) in [(&b""[..], "the file is empty"), (b"plain \xff\xfe", "UTF-8"), (b"a few words", "tokens")] {
        std::fs::write(dir.path().join("text.txt"), bytes).unwrap();
        refused(dir.path(), &["run", "tiny.toml"], &["text.txt", part]);
    }
    std::fs::remove_file(dir.path().join("text.txt")).unwrap();
    refused(dir.path(), &["run", "tiny.toml"], &["text.txt: no such file"]);
}

/// A reader that has gone away (`ablation … | head`) is no error.
#[test]
fn a_closed_pipe_is_no_error() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "out"]).status.success());
    for line in ["report out", "run tiny.toml --out again", "--help", "doctor", "doctor --json", "run --help", "verify"]
    {
        // The reading end is closed before anything is written.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let arguments: Vec<&str> = line.split(' ').collect();
        let output = command(dir.path(), &arguments).stdout(writer).stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{line}: {:?} {}", output.status, text(&output.stderr));
        assert!(!text(&output.stderr).contains("error"), "{line}: {}", text(&output.stderr));
    }
}

/// Pipes and devices in the place of files are refused, not read without end.
#[test]
fn what_is_no_file_is_not_read() {
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "out", "--only", "ring"]).status.success());
    let fifo = |path: &str| {
        assert!(std::process::Command::new("mkfifo").arg(dir.path().join(path)).status().unwrap().success());
    };
    std::fs::remove_file(dir.path().join("out/timeline.parquet")).unwrap();
    refused(dir.path(), &["report", "out"], &["timeline.parquet", "run the experiment again"]);
    fifo("out/timeline.parquet");
    refused(dir.path(), &["report", "out"], &["timeline.parquet: not a file"]);
    std::fs::remove_file(dir.path().join("text.txt")).unwrap();
    fifo("text.txt");
    refused(dir.path(), &["run", "tiny.toml"], &["text.txt: no regular file"]);
    std::fs::remove_file(dir.path().join("text.txt")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("text.txt")).unwrap();
    refused(dir.path(), &["run", "tiny.toml"], &["no regular file"]);
}

/// Rows that no ladder writes, in whole files.
#[test]
fn values_that_cannot_be_are_refused_by_column() {
    use ablation::record::run::Run;
    let dir = folder();
    assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "out", "--only", "ring"]).status.success());
    let out = dir.path().join("out");
    let own = records(&out);
    type Change = fn(&mut Run);
    let cases: [(Change, &str); 5] = [
        (|r| r.length_tokens = u64::MAX, "`length_tokens`"),
        (|r| r.padded_tokens = 1 << 63, "`padded_tokens`"),
        (|r| r.rung = "\u{1b}[2J".to_string(), "`rung`: the control character"),
        (|r| r.model = "x".repeat(100_000), "`model`: 100000 bytes"),
        (|r| r.reason = "a\0b".to_string(), "`reason`"),
    ];
    for (change, part) in cases {
        let mut changed = own.clone();
        change(&mut changed.runs[1]);
        changed.write(&out).unwrap();
        refused(dir.path(), &["report", "out"], &["runs.parquet", part]);
    }
    let mut many = own.clone();
    many.runs.extend((4..2000).map(|run| Run { run, rung: format!("rung-{run}"), ..own.runs[0].clone() }));
    many.write(&out).unwrap();
    refused(dir.path(), &["report", "out"], &["`rung`"]);
}

/// Files of two ladders in one folder are no ladder.
#[test]
fn files_of_two_ladders_are_refused() {
    let dir = folder();
    for out in ["a", "b"] {
        assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", out, "--only", "ring"]).status.success());
    }
    for file in ["timeline.parquet", "positions.parquet"] {
        let (from, to) = (dir.path().join("a").join(file), dir.path().join("b").join(file));
        let own = std::fs::read(&to).unwrap();
        std::fs::copy(&from, &to).unwrap();
        refused(dir.path(), &["report", "b"], &[file, "not of one ladder"]);
        std::fs::write(&to, own).unwrap();
    }
    assert!(ablation(dir.path(), &["report", "b"]).status.success());
}

/// A finished ladder's three files, read once.
fn whole() -> &'static [(&'static str, Vec<u8>); 3] {
    static WHOLE: OnceLock<[(&str, Vec<u8>); 3]> = OnceLock::new();
    WHOLE.get_or_init(|| {
        let dir = folder();
        assert!(ablation(dir.path(), &["run", "tiny.toml", "--out", "out"]).status.success());
        ["runs.parquet", "timeline.parquet", "positions.parquet"]
            .map(|file| (file, std::fs::read(dir.path().join("out").join(file)).unwrap()))
    })
}

/// Near the end stands the description of the whole file: it is hit as often as the rest.
fn damaged(which: usize, near_the_end: bool, with: &[Damage]) -> Vec<u8> {
    let mut bytes = whole()[which].1.clone();
    let kept = if near_the_end { bytes.len() * 3 / 4 } else { 0 };
    let mut tail = bytes.split_off(kept);
    with.iter().for_each(|w| damage(&mut tail, w));
    bytes.extend(tail);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn damaged_records_are_refused_or_harmless(
        which in 0..3usize, near_the_end in any::<bool>(), with in proptest::collection::vec(any_damage(), 1..4),
    ) {
        let dir = tempfile::tempdir().unwrap();
        for (file, bytes) in whole() {
            std::fs::write(dir.path().join(file), bytes).unwrap();
        }
        let bytes = damaged(which, near_the_end, &with);
        std::fs::write(dir.path().join(whole()[which].0), &bytes).unwrap();
        let output = in_time(dir.path(), &["report", "."]);
        let said = text(&output.stderr);
        prop_assert!(matches!(output.status.code(), Some(0 | 2)), "{:?}: {}", output.status, said);
        prop_assert!(!said.contains("panicked"), "{}", said);
        if output.status.code() == Some(2) {
            prop_assert!(said.contains(".parquet"), "{}", said);
            prop_assert!(!dir.path().join("report.html").exists());
        }
    }
}
