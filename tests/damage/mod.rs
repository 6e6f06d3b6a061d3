//! Ways to damage a file, and a program that must end in time whatever it reads.
#![allow(dead_code)] // each test file uses its own part

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::program::command;

/// Runs the program; ends the test if it takes too long.
pub fn in_time(dir: &Path, arguments: &[&str]) -> Output {
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

/// A way to damage a file.
#[derive(Debug, Clone)]
pub enum Damage {
    Set(Index, u8),
    Cut(Index),
    Drop(Index, usize),
    Repeat(Index, usize),
    Zero(Index, usize),
}

pub fn damage(bytes: &mut Vec<u8>, with: &Damage) {
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

pub fn any_damage() -> impl Strategy<Value = Damage> {
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

/// As many as PROPTEST_CASES says, or few: each starts the program.
pub fn cases() -> u32 {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default().cases,
        None => 32,
    }
}
