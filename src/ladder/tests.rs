use std::path::Path;

use super::attempt::{Purpose, attempts};
use super::experiment::Experiment;

const SMALL: &str = include_str!("../../experiments/small.toml");

fn parse(text: &str) -> anyhow::Result<Experiment> {
    Experiment::parse(text, "x.toml", Path::new("."))
}

#[test]
fn what_is_written_is_read_back() {
    let experiment = parse(SMALL).unwrap();
    assert_eq!(parse(&experiment.to_toml().unwrap()).unwrap(), experiment);
}

/// The guide's shape: 1 : 5 : 5 : 8, and 32 where the ranks stop with room left.
#[test]
fn the_small_ladder_has_the_guides_shape() {
    let e = parse(SMALL).unwrap();
    let all = attempts(&e, 1 << 22).unwrap();
    let longest = |rung: &str| {
        let found = all.iter().find(|a| a.rung.name == rung && a.purpose == Purpose::Longest).unwrap();
        (found.length as f64, found.planned.device.bytes.total())
    };
    let plain = longest("plain").0;
    assert!((100.0..=250.0).contains(&plain));
    for (rung, ratio, slack) in
        [("chunked", 5.0, 0.3), ("yarn", 5.0, 0.3), ("offload", 8.0, 0.5), ("ring", 32.0, 0.0), ("ulysses", 32.0, 0.0)]
    {
        assert!((longest(rung).0 / plain - ratio).abs() <= slack, "{rung}: {} × plain", longest(rung).0 / plain);
    }
    for rung in ["ring", "ulysses"] {
        assert!(longest(rung).1 < e.budget.unwrap() * 9 / 10);
        assert!(all.iter().all(|a| a.rung.name != rung || a.purpose != Purpose::Beyond));
    }
}

fn refused(from: &str, to: &str, says: &[&str]) {
    assert!(SMALL.contains(from), "{from}");
    let error = parse(&SMALL.replacen(from, to, 1)).expect_err(to);
    assert!(error.is::<crate::error::BadInput>());
    let message = error.to_string();
    for part in std::iter::once(&"x.toml").chain(says) {
        assert!(message.contains(part), "{to}: {message}");
    }
}

#[test]
fn wrong_files_get_one_clear_message() {
    refused("seed = 1", "sede = 1", &[":12:1", "unknown field `sede`", "did you mean `seed`"]);
    refused("hidden_size = 96", "hiden_size = 96", &["`hiden_size`", "did you mean `hidden_size`"]);
    refused("grid = 16", "grip = 16", &["did you mean `grid`"]);
    refused("loss = \"full\"", "loss = \"ful\"", &["did you mean `full`"]);
    refused("factor = 5.0", "faktor = 5.0", &["did you mean `factor`"]);
    refused("seed = 1", "seed = \"one\"", &[":12:8", "invalid type"]);
    refused("seed = 1", "seed = 99999999999999999999999", &[":12"]);
    refused("seed = 1", "seed = ", &[":12"]);
    refused("steps = 3 ", "steps = 0 ", &["steps"]);
    refused("steps = 3 ", "", &["missing field `steps`"]);
    refused("learning_rate = 2e-3", "learning_rate = nan", &["learning_rate"]);
    refused("\"17MiB\"", "\"17 mib\"", &["80GiB"]);
    refused("\"17MiB\"", "-5", &["-5 is not positive"]);
    refused("name = \"small\"", "name = \"../small\"", &["a to z"]);
    refused("grid = 16", "grid = 4000000000000", &["rung `plain`", "grid = 4000000000000"]);
    refused("grid = 16", "grid = 0", &["0 is not positive"]);
    refused("stop_at = 6144", "stop_at = 6100", &["rung `ring`", "no multiple of grid = 64"]);
    refused("grid = 64", "grid = 12", &["rung `ring`", "multiple of 8"]);
    refused("cp = \"ring\", ", "", &["rung `ring`", "set cp"]);
    refused(", ranks = 4", "", &["rung `ring`", "set ranks"]);
    refused("cp = \"ulysses\", ranks = 4", "cp = \"ulysses\", ranks = 8", &["rung `ulysses`", "8 does not divide"]);
    refused("name = \"chunked\"", "name = \"plain\"", &["stands twice"]);
    refused("name = \"chunked\"", "name = \"../plain\"", &["`../plain`"]);
    refused("num_key_value_heads = 2", "num_key_value_heads = 3", &["num_key_value_heads = 3"]);
    refused("head_dim = 24", "head_dim = 23", &["even"]);
    refused("chunk_rows = 32", "chunk_rows = 3", &["chunk_rows = 3"]);
    refused("tile = 128", "tile = 8", &["tile = 8"]);
    refused("loss = \"full\"", "loss = \"full\", chunk_rows = 64", &["would be ignored"]);
    refused("factor = 5.0", "factor = 0.5", &["factor must be 1 or more"]);
    refused("[text]\nbooks", "[text]\nfiles = [\"a.txt\"]\nbooks", &["either `books` or `files`"]);
}

#[test]
fn a_budget_under_the_weights_is_bad_input() {
    let mut e = parse(SMALL).unwrap();
    e.budget = Some(1 << 20);
    let error = attempts(&e, 1 << 22).unwrap_err();
    assert!(error.is::<crate::error::BadInput>());
    assert!(error.to_string().contains("weights, gradients and moments alone take 11.6 MiB"), "{error}");
}

/// A parser that recurses must not be led to the end of its stack.
#[test]
fn deep_brackets_are_refused() {
    for open in ["[", "{", "a = [", "[["] {
        assert!(parse(&open.repeat(100_000)).is_err());
    }
}

proptest::proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(at in 0..SMALL.len(), cut in 0..40usize, put in "[\\[\\]{}=\"a-z0-9.\n -]{0,6}") {
        let (mut start, mut end) = (at, (at + cut).min(SMALL.len()));
        while !SMALL.is_char_boundary(start) { start -= 1; }
        while !SMALL.is_char_boundary(end) { end += 1; }
        let _ = parse(&format!("{}{put}{}", &SMALL[..start], &SMALL[end..]));
    }
}
