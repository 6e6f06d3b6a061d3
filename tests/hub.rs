//! `ablation fetch`, and ids in place of paths, against a hub that stands in this process: it
//! speaks what hf-hub asks of huggingface.co.

mod program;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

use polars::prelude::{Column, DataFrame, NamedFrom, ParquetWriter, Series};
use program::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub has, and what it was asked.
#[derive(Default)]
struct State {
    /// "models/owner/name" → file → bytes.
    repositories: HashMap<String, Vec<(String, Vec<u8>)>>,
    /// Requests: line, and the token that came with it.
    asked: Mutex<Vec<(String, Option<String>)>>,
    /// Files of which the first transfer ends after so many bytes.
    breaks: Mutex<HashMap<String, usize>>,
    /// A token without which nothing is given.
    token: Option<String>,
}

struct FakeHub {
    endpoint: String,
    state: Arc<State>,
}

impl FakeHub {
    fn new(state: State) -> FakeHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(state);
        let held = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = held.clone();
                std::thread::spawn(move || while answer(&stream, &state).is_some() {});
            }
        });
        FakeHub { endpoint, state }
    }

    fn run(&self, dir: &Path, arguments: &[&str], more: &[(&str, &str)]) -> Output {
        let mut command = command(dir, arguments);
        for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command.env("HF_ENDPOINT", &self.endpoint).env("HF_HOME", dir.join("hf")).env("XDG_CACHE_HOME", dir.join("c"));
        command.envs(more.iter().copied()).output().unwrap()
    }

    fn requests(&self) -> usize {
        self.state.asked.lock().unwrap().len()
    }
}

/// Answers one request; none: the connection is at its end.
fn answer(stream: &TcpStream, state: &State) -> Option<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut headers = HashMap::new();
    for line in lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ")?;
        headers.insert(name.to_lowercase(), value.to_string());
    }
    let token = headers.get("authorization").map(|value| value.trim_start_matches("Bearer ").to_string());
    state.asked.lock().unwrap().push((first.clone(), token.clone()));
    let path = first.split(' ').nth(1)?.to_string();
    let send = |status: &str, head: &str, body: &[u8], of: usize| {
        let mut out = stream;
        write!(out, "HTTP/1.1 {status}\r\n{head}content-length: {of}\r\n\r\n").ok()?;
        out.write_all(body).ok()?;
        (body.len() == of).then_some(())
    };
    if state.token.is_some() && state.token != token {
        return send("401 Unauthorized", "", b"", 0);
    }
    if let Some(id) = path.strip_prefix("/api/").and_then(|p| p.strip_suffix("/revision/main")) {
        let Some(files) = state.repositories.get(id) else { return send("404 Not Found", "", b"", 0) };
        let siblings: Vec<_> = files.iter().map(|(name, _)| serde_json::json!({ "rfilename": name })).collect();
        let body = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        return send("200 OK", "content-type: application/json\r\n", body.as_bytes(), body.len());
    }
    let (id, file) = path.trim_start_matches('/').split_once(&format!("/resolve/{COMMIT}/"))?;
    let id = if id.starts_with("datasets/") { id.to_string() } else { format!("models/{id}") };
    let found = state.repositories.get(&id).and_then(|files| files.iter().find(|(name, _)| name == file));
    let Some((_, bytes)) = found else { return send("404 Not Found", "", b"", 0) };
    let (from, to) = headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
    let from: usize = from.parse().ok()?;
    let to = to.parse().map_or(bytes.len(), |to: usize| (to + 1).min(bytes.len()));
    if from >= bytes.len() {
        return send("416 Range Not Satisfiable", "", b"", 0);
    }
    let part = &bytes[from..to];
    let etag = ablation::hash::sha256(bytes);
    let range = format!("content-range: bytes {from}-{}/{}\r\n", to - 1, bytes.len());
    let head = format!("etag: \"{etag}\"\r\nx-repo-commit: {COMMIT}\r\n{range}");
    let cut = if part.len() > 1 { state.breaks.lock().unwrap().remove(file) } else { None };
    send("206 Partial Content", &head, &part[..cut.unwrap_or(part.len()).min(part.len())], part.len())
}

fn files_of(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let read = |name: &str| Some((name.to_string(), std::fs::read(folder.join(name)).ok()?));
    ["config.json", "model.safetensors"].into_iter().filter_map(read).collect()
}

fn model(files: Vec<(String, Vec<u8>)>) -> HashMap<String, Vec<(String, Vec<u8>)>> {
    HashMap::from([("models/owner/tiny".to_string(), files)])
}

fn ok(output: Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_model_is_fetched_once_resumed_and_found_by_its_id() {
    let mut files = files_of("tests/reference/dense-untied");
    files.push(("README.md".to_string(), b"not needed".to_vec()));
    let breaks = Mutex::new(HashMap::from([("model.safetensors".to_string(), 100_000)]));
    let hub = FakeHub::new(State { repositories: model(files.clone()), breaks, ..State::default() });
    let dir = folder();
    let output = hub.run(dir.path(), &["fetch", "owner/tiny"], &[("HF_TOKEN", "secret")]);
    assert!(text(&output.stderr).contains("going on where it stopped"), "{}", text(&output.stderr));
    let said = ok(output);
    assert!(said.contains("2 files, ") && said.contains("2 loaded now") && said.contains(&COMMIT[..12]), "{said}");
    assert!(hub.state.asked.lock().unwrap().iter().all(|(_, token)| token.as_deref() == Some("secret")));
    let asked = |part: &str| hub.state.asked.lock().unwrap().iter().filter(|(line, _)| line.contains(part)).count();
    assert_eq!(asked("README"), 0);

    // The usual cache, whole.
    let cache = dir.path().join("hf/hub/models--owner--tiny");
    assert_eq!(std::fs::read_to_string(cache.join("refs/main")).unwrap(), COMMIT);
    for (name, bytes) in &files[..2] {
        assert!(std::fs::read(cache.join("snapshots").join(COMMIT).join(name)).unwrap() == *bytes, "{name}");
    }
    let again = ok(hub.run(dir.path(), &["fetch", "owner/tiny"], &[]));
    assert!(again.contains("all there already"), "{again}");

    // From now on its id stands for it, and nobody is asked.
    let before = hub.requests();
    given(&dir.path().join("rows.safetensors"), 16);
    let loss = ["loss", "--model", "owner/tiny", "--tokens", "rows.safetensors", "--json"];
    let said = ok(hub.run(dir.path(), &loss, &[("HF_HUB_OFFLINE", "1")]));
    assert!(said.contains("\"model\": \"owner/tiny\""), "{said}");
    ok(hub.run(dir.path(), &loss, &[]));
    assert_eq!(hub.requests(), before);
}

/// A file for --tokens with one row of so many ids.
fn given(path: &Path, length: usize) {
    let bytes: Vec<u8> = (0..length as i64).flat_map(i64::to_le_bytes).collect();
    let ids = safetensors::tensor::TensorView::new(safetensors::Dtype::I64, vec![1, length], &bytes).unwrap();
    safetensors::serialize_to_file([("input_ids", ids)], None::<HashMap<String, String>>, path).unwrap();
}

#[test]
fn a_model_that_is_not_there_is_loaded_when_it_is_named() {
    let hub = FakeHub::new(State { repositories: model(files_of("tests/reference/dense-untied")), ..State::default() });
    let dir = folder();
    given(&dir.path().join("rows.safetensors"), 16);
    let loss = ["loss", "--model", "owner/tiny", "--tokens", "rows.safetensors", "--json"];
    // Not without the hub.
    let offline = hub.run(dir.path(), &loss, &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(offline.status.code(), Some(2));
    assert!(text(&offline.stderr).contains("HF_HUB_OFFLINE is set"), "{}", text(&offline.stderr));
    assert_eq!(hub.requests(), 0);
    ok(hub.run(dir.path(), &loss, &[]));
    // A snapshot that lacks its weights is not taken for a model.
    let snapshot = dir.path().join("hf/hub/models--owner--tiny/snapshots").join(COMMIT);
    std::fs::remove_file(snapshot.join("model.safetensors")).unwrap();
    ok(hub.run(dir.path(), &loss, &[]));
    assert!(snapshot.join("model.safetensors").exists());
}

#[test]
fn what_the_hub_refuses_is_said() {
    let hub = FakeHub::new(State { repositories: model(vec![("a.bin".into(), vec![1])]), ..State::default() });
    let closed = FakeHub::new(State { token: Some("right".into()), ..State::default() });
    let dir = folder();
    for (hub, id, part) in [
        (&hub, "owner/tiny", "no config.json"),
        (&hub, "owner/other", "no such thing"),
        (&hub, "tiny", "no id of the hub"),
        (&closed, "owner/tiny", "set HF_TOKEN"),
    ] {
        let output = hub.run(dir.path(), &["fetch", id], &[("HF_TOKEN", "wrong")]);
        assert_eq!(output.status.code(), Some(2), "{id}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{id}: {}", text(&output.stderr));
    }
    let nobody = command(dir.path(), &["fetch", "a/b"]).env("HF_ENDPOINT", "http://127.0.0.1:9").output().unwrap();
    assert_eq!(nobody.status.code(), Some(2), "{}", text(&nobody.stderr));
}

/// A transfer of the right length and other bytes is not kept.
#[test]
fn damaged_files_do_not_stay() {
    let hub = FakeHub::new(State { repositories: model(files_of("tests/reference/dense-untied")), ..State::default() });
    let dir = folder();
    let blobs = dir.path().join("hf/hub/models--owner--tiny/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let weights = &files_of("tests/reference/dense-untied")[1].1;
    let part = blobs.join(format!("{}.part", ablation::hash::sha256(weights)));
    // What an earlier process left, whole but for a bit.
    let mut damaged = weights.clone();
    damaged[70_000] ^= 1;
    std::fs::write(&part, &damaged).unwrap();
    ok(hub.run(dir.path(), &["fetch", "owner/tiny"], &[]));
    let snapshot = dir.path().join("hf/hub/models--owner--tiny/snapshots").join(COMMIT);
    assert!(std::fs::read(snapshot.join("model.safetensors")).unwrap() == *weights);
}

fn parquet(rows: &[(&str, String)]) -> Vec<u8> {
    let column = |name: &str, of: Vec<&str>| Column::from(Series::new(name.into(), of));
    let titles = column("short_book_title", rows.iter().map(|r| r.0).collect());
    let texts = column("text", rows.iter().map(|r| &r.1[..]).collect());
    let mut bytes = Vec::new();
    let mut table = DataFrame::new(rows.len(), vec![titles, texts]).unwrap();
    ParquetWriter::new(&mut bytes).with_row_group_size(Some(1)).finish(&mut table).unwrap();
    bytes
}

/// A dataset is read file by file, no further than it is needed, book after book.
#[test]
fn training_on_a_dataset_of_the_hub() {
    let tiny = "tests/reference/dense-untied";
    let mut repositories = model(files_of(tiny));
    // A tokenizer whose ids the tiny model has: bytes alone.
    repositories.get_mut("models/owner/tiny").unwrap().push(("tokenizer.json".into(), byte_tokenizer().into_bytes()));
    let book = |n: usize| format!("book {n}: it was a dark night ").repeat(2);
    let files = vec![
        ("data/train-00000-of-00003.parquet".to_string(), parquet(&[("one", book(1)), ("two", book(2))])),
        ("data/train-00001-of-00003.parquet".to_string(), parquet(&[("three", book(3)), ("four", book(4))])),
        ("data/train-00002-of-00003.parquet".to_string(), parquet(&[("five", book(5))])),
        ("data/test-00000-of-00001.parquet".to_string(), parquet(&[("test", book(6))])),
    ];
    repositories.insert("datasets/owner/books".to_string(), files);
    let hub = FakeHub::new(State { repositories, ..State::default() });
    let dir = folder();
    let said = ok(hub.run(dir.path(), &["fetch", "owner/tiny", "owner/books"], &[]));
    assert!(said.contains("1 files of 3 (--files for more)"), "{said}");

    let train = ["train", "--model", "owner/tiny", "--dataset", "owner/books", "--length", "32", "--rows", "2"];
    let more = ["--row-characters", "100", "--steps", "4", "--out", "out"];
    let output = hub.run(dir.path(), &[&train[..], &more].concat(), &[]);
    let log = ok(output);
    assert!(log.contains("'num_tokens': 64, 'epoch': 1.00") && log.contains("'epoch': 2.00"), "{log}");
    let record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("out/training.json")).unwrap()).unwrap();
    let rows = record["data"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0]["documents"], serde_json::json!(["one", "two"]));
    assert_eq!(rows[1]["documents"], serde_json::json!(["three", "four"]));
    assert_eq!(rows[0]["joined_characters"], book(1).len() + book(2).len());
    let ids: Vec<u32> = (book(1) + &book(2)).bytes().take(32).map(u32::from).collect();
    assert_eq!(rows[0]["ids_sha256"], ablation::hash::sha256_of_ids(&ids));
    assert_eq!(record["steps"].as_array().unwrap().len(), 4);
    assert_eq!(record["peak_of_the_fullest_rank"], record["planned_peak_of_a_rank"]);
    assert!(dir.path().join("out/tokenizer.json").exists());
    // The third file and the other split were not needed.
    let asked = |part: &str| hub.state.asked.lock().unwrap().iter().any(|(line, _)| line.contains(part));
    assert!(asked("train-00001") && !asked("train-00002") && !asked("test-00000"));
    // And again without the hub.
    let again = [&train[..], &["--row-characters", "100", "--steps", "1", "--out", "again"]].concat();
    ok(hub.run(dir.path(), &again, &[("HF_HUB_OFFLINE", "1")]));
}
