//! Input that means ill: each ends as bad input with a message that says where, or is
//! harmless; nothing panics, aborts, hangs or fills memory.
//!
//! `PROPTEST_CASES=5000 cargo test --release --test hostile` goes on for longer.
#![cfg(unix)]

mod program;

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use program::*;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Runs the program; ends the test if it takes too long.
fn in_time(dir: &Path, arguments: &[&str]) -> Output {
    let mut child = command(dir, arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{arguments:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

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
    refused(dir.path(), &["run", "."], &[".: ", "give an experiment file"]);
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
    let program = env!("CARGO_BIN_EXE_ablation");
    for line in ["report out", "--help", "doctor", "doctor --json", "run --help"] {
        let script = format!("set -o pipefail; {program} {line} | true");
        let output = std::process::Command::new("bash").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {:?} {}", output.status, text(&output.stderr));
        assert!(output.stderr.is_empty(), "{line}: {}", text(&output.stderr));
    }
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

/// A way to damage a file.
#[derive(Debug, Clone)]
enum Damage {
    Set(Index, u8),
    Cut(Index),
    Drop(Index, usize),
    Repeat(Index, usize),
    Zero(Index, usize),
}

fn damage(bytes: &mut Vec<u8>, with: &Damage) {
    let stretch = |at: &Index, n: usize| {
        let start = at.index(bytes.len());
        start..(start + n).min(bytes.len())
    };
    match with {
        Damage::Set(at, value) => {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        Damage::Cut(at) => bytes.truncate(at.index(bytes.len()).max(1)),
        Damage::Drop(at, n) => drop(bytes.drain(stretch(at, (*n).min(bytes.len() - 1)))),
        Damage::Repeat(at, n) => {
            let part = bytes[stretch(at, *n)].to_vec();
            let at = at.index(bytes.len());
            bytes.splice(at..at, part);
        }
        Damage::Zero(at, n) => {
            let range = stretch(at, *n);
            bytes[range].fill(0);
        }
    }
    if bytes.is_empty() {
        bytes.push(0);
    }
}

fn any_damage() -> impl Strategy<Value = Damage> {
    let at = any::<Index>;
    prop_oneof![
        8 => (at(), any::<u8>()).prop_map(|(at, value)| Damage::Set(at, value)),
        2 => (at(), select(vec![0u8, 0x7f, 0x80, 0xff])).prop_map(|(at, value)| Damage::Set(at, value)),
        1 => at().prop_map(Damage::Cut),
        1 => (at(), 1..64usize).prop_map(|(at, n)| Damage::Drop(at, n)),
        1 => (at(), 1..64usize).prop_map(|(at, n)| Damage::Repeat(at, n)),
        1 => (at(), 1..64usize).prop_map(|(at, n)| Damage::Zero(at, n)),
    ]
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
        cases: ProptestConfig::default().cases / if std::env::var_os("PROPTEST_CASES").is_some() { 1 } else { 8 },
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
