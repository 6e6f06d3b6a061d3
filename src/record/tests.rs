use polars::prelude::{Column, DataFrame, DataType, ParquetReader, ParquetWriter, SerReader};

use super::run::*;
use super::*;
use crate::memory::category::{Bytes, Category};

fn run(number: u32) -> Run {
    Run {
        run: number,
        experiment: "small".to_string(),
        rung: "plain".to_string(),
        purpose: "longest".to_string(),
        loss_kind: "chunked".to_string(),
        loss_chunk_rows: (number > 0).then_some(64),
        rope: "yarn".to_string(),
        yarn_factor: Some(4.0),
        yarn_original_tokens: None,
        keep: "inputs".to_string(),
        offload: "host".to_string(),
        every: 1,
        tile_tokens: 128,
        context_parallel: "none".to_string(),
        ranks: 1,
        moments: "bf16".to_string(),
        learning_rate: 2e-5,
        model: "tiny".to_string(),
        layers: 2,
        hidden_size: 8,
        intermediate_size: 16,
        attention_heads: 2,
        key_value_heads: 1,
        head_dim: 4,
        vocabulary: 97,
        tied_head: true,
        parameters: 1234,
        length_tokens: 1 << 40,
        padded_tokens: 64,
        valid_targets: 63,
        steps: 2,
        status: if number == 0 { Status::OutOfMemory } else { Status::Ok },
        reason: "üöß \"quoted\"\nlines".to_string(),
        loss: vec![7.5, f64::INFINITY].into_iter().take(number as usize * 2).collect(),
        gradient_norm: vec![1.0],
        step_seconds: vec![],
        tokens_per_second: None,
        budget_bytes: Some(u64::MAX / 2),
        peak_device_bytes: 10,
        at_peak_device: Bytes([number as u64; Category::COUNT]),
        peak_phase: "loss".to_string(),
        peak_layer: -1,
        peak_host_bytes: 0,
        at_peak_host: Bytes::default(),
        predicted_peak_device_bytes: 10,
        predicted_at_peak_device: None,
        predicted_at_peak_host: None,
        keep_attention_layers: Some(0),
        offload_input_layers: None,
        offload_attention_layers: Some(0),
        predicted_peak_host_bytes: 0,
        peak_process_ledger_bytes: 10,
        peak_process_measured_bytes: 11,
        model_flops: 1,
        hardware_flops: 2,
        communication_bytes: 3,
        host_link_bytes: 4,
        seed: 5,
        text: "emma".to_string(),
        tokens_sha256: None,
        device: "cpu".to_string(),
        program_version: "0".to_string(),
        git_revision: "".to_string(),
        program_sha256: Some("ab".to_string()),
        store_path: None,
        experiment_toml: "name = 1".to_string(),
        host_name: "h".to_string(),
        cpu: "c".to_string(),
        cores: 2,
        gpu: None,
        driver: Some("d".to_string()),
        started_unix_ms: 1_700_000_000_000,
    }
}

fn records() -> Records {
    let point = |step| TimelinePoint {
        run: 1,
        started_unix_ms: run(1).started_unix_ms,
        rank: 0,
        step,
        seconds: 0.25,
        phase: "forward".to_string(),
        layer: 1,
        device: Bytes([7; Category::COUNT]),
        host: Bytes::default(),
    };
    let started_unix_ms = run(1).started_unix_ms;
    let band = |mean_loss| PositionBand {
        run: 1,
        started_unix_ms,
        step: 0,
        start_token: 0,
        end_token: 64,
        targets: 63,
        mean_loss,
    };
    Records {
        runs: vec![run(0), run(1)],
        timeline: vec![point(0), point(1)],
        positions: vec![band(Some(7.0)), band(None)],
    }
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    for records in [Records::default(), records()] {
        records.write(dir.path()).unwrap();
        assert_eq!(Records::read(dir.path()).unwrap(), records);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file stays");
}

#[test]
fn files_that_are_not_ours_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let message = || {
        let error = Records::read(dir.path()).unwrap_err();
        assert!(error.is::<crate::error::BadInput>(), "{error:?}");
        error.to_string()
    };
    assert!(message().contains("timeline.parquet"));
    records().write(dir.path()).unwrap();
    let path = dir.path().join("runs.parquet");
    let whole = std::fs::read(&path).unwrap();
    for length in [0, 3, 8, 100, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(message().contains("runs.parquet"), "cut to {length} bytes");
    }
    std::fs::copy(dir.path().join("positions.parquet"), &path).unwrap();
    assert!(message().contains("there is no column `experiment`"), "{}", message());
}

/// Writes the records, changes one of the files' tables, and reads them all back.
fn read_changed(file: &str, change: impl FnOnce(&mut DataFrame)) -> anyhow::Result<Records> {
    let dir = tempfile::tempdir().unwrap();
    records().write(dir.path()).unwrap();
    let path = dir.path().join(file);
    let mut table = ParquetReader::new(std::fs::File::open(&path).unwrap()).finish().unwrap();
    change(&mut table);
    ParquetWriter::new(std::fs::File::create(&path).unwrap()).finish(&mut table).unwrap();
    Records::read(dir.path())
}

#[test]
fn a_column_that_is_missing_or_of_another_kind_is_named() {
    type Change = fn(&mut DataFrame);
    let null = |table: &mut DataFrame, name: &str| {
        let dtype = table.column(name).unwrap().dtype().clone();
        table.with_column(Column::full_null(name.into(), table.height(), &dtype)).unwrap();
    };
    let cases: [(&str, &str, Change, &str); 4] = [
        (
            "runs.parquet",
            "at_peak_device_logits_bytes",
            |t| *t = t.drop("at_peak_device_logits_bytes").unwrap(),
            "no column",
        ),
        ("runs.parquet", "gpu", |t| *t = t.drop("gpu").unwrap(), "no column"),
        (
            "timeline.parquet",
            "seconds",
            |t| _ = t.with_column(t.column("seconds").unwrap().cast(&DataType::Int64).unwrap()).unwrap(),
            "holds i64",
        ),
        (
            "runs.parquet",
            "status",
            |t| _ = t.with_column(Column::new("status".into(), ["ok", "fine"])).unwrap(),
            "`fine`",
        ),
    ];
    for (file, column, change, what) in cases {
        let error = read_changed(file, change).unwrap_err();
        assert!(error.is::<crate::error::BadInput>(), "{error:?}");
        let message = error.to_string();
        let told = [file, column, what, "run the experiment again"];
        assert!(told.iter().all(|t| message.contains(t)), "{message}");
    }
    for (file, column) in [("runs.parquet", "rung"), ("runs.parquet", "loss_by_step"), ("positions.parquet", "targets")]
    {
        let message = read_changed(file, |t| null(t, column)).unwrap_err().to_string();
        assert!(message.contains(file) && message.contains(&format!("`{column}` has a null")), "{message}");
    }
}

#[test]
fn records_from_before_a_column_was_added_are_read() {
    let read = read_changed("runs.parquet", |t| *t = t.drop("store_path").unwrap()).unwrap();
    assert_eq!(read, records());
}
