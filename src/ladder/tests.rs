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

/// failures.md 24: a key of YaRN that would be ignored is an error.
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
    refused(
        "num_hidden_layers = 8",
        "num_hidden_layers = 1000000000",
        &["num_hidden_layers = 1000000000: at most 4096"],
    );
    let rungs = "[[rung]]\nname = \"x\"\ngrid = 16\n".repeat(20_000);
    refused("[[rung]]", &format!("{rungs}[[rung]]"), &["20006 rungs: at most 200"]);
    refused("chunk_rows = 32", "chunk_rows = 3", &["chunk_rows = 3"]);
    refused("tile = 128", "tile = 8", &["tile = 8"]);
    refused("loss = \"full\"", "loss = \"full\", chunk_rows = 64", &["would be ignored"]);
    refused("factor = 5.0", "factor = 0.5", &["factor must be 1 or more"]);
    refused("[text]\nbooks", "[text]\nfiles = [\"a.txt\"]\nbooks", &["either `books` or `files`"]);
}

/// failures.md 8, 9: what this program doesn't compute is no key of a model, and what is no
/// key is refused.
#[test]
fn models_of_other_kinds_are_refused() {
    for key in [
        "sliding_window = 4096",
        "use_sliding_window = true",
        "layer_types = [\"linear_attention\"]",
        "max_window_layers = 2",
        "num_experts = 128",
        "attention_bias = true",
        "attention_sinks = 4",
        "rope_scaling = {}",
    ] {
        let with = format!("tie_word_embeddings = true\n{key}");
        refused("tie_word_embeddings = true", &with, &["unknown field", key.split(' ').next().unwrap()]);
    }
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

/// All tables of a file by their path of keys, with the keys of each.
fn tables(value: &toml::Value, path: &[String], all: &mut Vec<Vec<String>>) {
    let children: Vec<(String, &toml::Value)> = match value {
        toml::Value::Table(table) => table.iter().map(|(key, v)| (key.clone(), v)).collect(),
        toml::Value::Array(array) => array.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => return,
    };
    for (key, child) in children {
        let path = [path, &[key]].concat();
        tables(child, &path, all);
        all.push(path);
    }
}

/// The value at a path.
fn at<'a>(value: &'a mut toml::Value, path: &[String]) -> &'a mut toml::Value {
    path.iter().fold(value, |value, key| match value {
        toml::Value::Array(array) => &mut array[key.parse::<usize>().unwrap()],
        value => &mut value[key.as_str()],
    })
}

/// The small ladder with a change at each place in turn: `change` gets the value and the
/// path to what it may change, and says whether it did.
fn changed(change: impl Fn(&mut toml::Value, &[String]) -> bool) -> Vec<(Vec<String>, String)> {
    let whole: toml::Value = toml::from_str(SMALL).unwrap();
    let mut all = Vec::new();
    tables(&whole, &[], &mut all);
    assert!(all.len() > 80, "{} places", all.len());
    let mut texts = Vec::new();
    for path in all {
        let mut value = whole.clone();
        if change(&mut value, &path) {
            texts.push((path, toml::to_string(&value).unwrap()));
        }
    }
    texts
}

/// failures.md 24: each key with a letter too many: the nearest right one is the key itself.
#[test]
fn a_misspelt_key_anywhere_is_refused_with_the_right_one() {
    let texts = changed(|value, path| {
        let (key, table) = path.split_last().unwrap();
        let toml::Value::Table(table) = at(value, table) else { return false };
        let own = table.remove(key).unwrap();
        table.insert(format!("{key}x"), own);
        true
    });
    for (path, text) in texts {
        let message = parse(&text).expect_err(&text).to_string();
        let key = path.last().unwrap();
        assert!(message.contains(&format!("unknown field `{key}x`")), "{path:?}: {message}");
        assert!(message.contains(&format!("did you mean `{key}`?")), "{path:?}: {message}");
        assert!(message.starts_with("x.toml:"), "{message}");
    }
}

/// Each value of another type, beyond its range or no number: a message, or a setting
/// that is right; planning it ends as well.
#[test]
fn any_value_anywhere_is_refused_or_right() {
    let wrong = [
        "true",
        "\"\"",
        "\"x\"",
        "[]",
        "[[]]",
        "{}",
        "0",
        "-1",
        "1",
        "4294967296",
        "9223372036854775807",
        "1e300",
        "-1e300",
        "1e-300",
        "nan",
        "inf",
        "-inf",
        "0.5",
        "1979-05-27",
    ];
    let mut refused = 0;
    for wrong in wrong {
        let wrong: toml::Value = toml::from_str::<toml::Table>(&format!("v = {wrong}")).unwrap()["v"].clone();
        for (path, text) in changed(|value, path| {
            *at(value, path) = wrong.clone();
            true
        }) {
            let start = std::time::Instant::now();
            match parse(&text).and_then(|e| attempts(&e, 1 << 12)) {
                Ok(_) => {}
                Err(error) => {
                    assert!(error.is::<crate::error::BadInput>(), "{path:?} = {wrong}: {error:?}");
                    refused += 1;
                }
            }
            assert!(start.elapsed().as_secs() < 20, "{path:?} = {wrong} takes {:?}", start.elapsed());
        }
    }
    assert!(refused > 1000, "{refused}");
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
