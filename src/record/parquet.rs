//! The three Parquet files of a folder, each written whole and moved into place.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

use anyhow::Result;
use polars::prelude::{Column, DataFrame, DataType, ParquetReader, ParquetWriter, Scalar, SerReader};

use super::field::{Field, table};
use super::run::{PositionBand, Run, TimelinePoint};
use super::{Records, plausible};
use crate::bad_input;
use crate::files::write_whole;
use crate::guard::guarded;
use crate::memory::category::Category;

table!(Run, runs, read_runs, {
    run => "run", experiment => "experiment", rung => "rung", purpose => "purpose",
    status => "status", reason => "reason",
    loss_kind => "loss_kind", loss_chunk_rows => "loss_chunk_rows", rope => "rope", yarn_factor => "yarn_factor",
    yarn_original_tokens => "yarn_original_tokens", keep => "keep",
    keep_attention_layers => "keep_attention_layers", offload => "offload",
    offload_input_layers => "offload_input_layers", offload_attention_layers => "offload_attention_layers", every => "every",
    tile_tokens => "tile_tokens", context_parallel => "context_parallel", ranks => "ranks", moments => "moments",
    learning_rate => "learning_rate",
    model => "model", layers => "layers", hidden_size => "hidden_size", intermediate_size => "intermediate_size",
    attention_heads => "attention_heads", key_value_heads => "key_value_heads", head_dim => "head_dim",
    vocabulary => "vocabulary", tied_head => "tied_head", parameters => "parameters",
    length_tokens => "length_tokens", padded_tokens => "padded_tokens", valid_targets => "valid_targets",
    steps => "steps",
    loss => "loss_by_step", gradient_norm => "gradient_norm_by_step", step_seconds => "step_seconds",
    tokens_per_second => "tokens_per_second",
    budget_bytes => "budget_bytes", peak_device_bytes => "peak_device_bytes", at_peak_device => "at_peak_device",
    peak_phase => "peak_phase", peak_layer => "peak_layer",
    peak_host_bytes => "peak_host_bytes", at_peak_host => "at_peak_host",
    predicted_peak_device_bytes => "predicted_peak_device_bytes",
    predicted_at_peak_device => "predicted_at_peak_device",
    predicted_peak_host_bytes => "predicted_peak_host_bytes", predicted_at_peak_host => "predicted_at_peak_host",
    peak_process_ledger_bytes => "peak_process_ledger_bytes",
    peak_process_measured_bytes => "peak_process_measured_bytes",
    model_flops => "model_flops", hardware_flops => "hardware_flops",
    communication_bytes => "communication_bytes", host_link_bytes => "host_link_bytes",
    seed => "seed", text => "text", tokens_sha256 => "tokens_sha256", device => "device", program_version => "program_version",
    git_revision => "git_revision", program_sha256 => "program_sha256", store_path => "store_path",
    experiment_toml => "experiment_toml", host_name => "host_name", cpu => "cpu", cores => "cores", gpu => "gpu", driver => "driver", started_unix_ms => "started_unix_ms",
});

table!(TimelinePoint, timeline, read_timeline, {
    run => "run", started_unix_ms => "started_unix_ms", rank => "rank", step => "step", seconds => "seconds", phase => "phase", layer => "layer",
    device => "device", host => "host",
});

table!(PositionBand, positions, read_positions, {
    run => "run", started_unix_ms => "started_unix_ms", step => "step", start_token => "start_token", end_token => "end_token", targets => "targets",
    mean_loss => "mean_loss_nats",
});

/// A column that came after the first records were kept, as it reads where a file lacks it.
pub(super) struct Added {
    name: String,
    value: Scalar,
}

fn null(name: impl Into<String>, dtype: DataType) -> Added {
    Added { name: name.into(), value: Scalar::null(dtype) }
}

/// What driver and libraries held, before there was such a category: nothing.
fn no_fixed(places: &[&str]) -> Vec<Added> {
    let name = |place| format!("{place}_{}_bytes", Category::Fixed.key());
    places.iter().map(|place| Added { name: name(place), value: Scalar::from(0u64) }).collect()
}

fn added_to_runs() -> Vec<Added> {
    let texts = ["store_path", "tokens_sha256", "program_sha256"].map(|name| null(name, DataType::String));
    let layers = ["keep_attention_layers", "offload_input_layers", "offload_attention_layers"];
    let mut added = no_fixed(&["at_peak_device", "at_peak_host"]);
    added.extend(texts);
    added.extend(layers.map(|name| null(name, DataType::UInt32)));
    for place in ["predicted_at_peak_device", "predicted_at_peak_host"] {
        let name = |category: Category| format!("{place}_{}_bytes", category.key());
        added.extend(Category::ALL.map(|category| null(name(category), DataType::UInt64)));
    }
    added
}

/// Names of the files.
pub const FILES: [&str; 3] = ["timeline.parquet", "positions.parquet", "runs.parquet"];

impl Records {
    /// Writes the three files; `runs.parquet` last, so that a run's row always finds its others.
    pub fn write(&self, dir: &Path) -> Result<()> {
        write_table(dir, FILES[0], timeline(&self.timeline)?)?;
        write_table(dir, FILES[1], positions(&self.positions)?)?;
        write_table(dir, FILES[2], runs(&self.runs)?)
    }

    /// As [`Records::write`], where rows have been taken away: `runs.parquet` first, so
    /// that what is left is whole whenever the writing ends.
    pub fn write_fewer(&self, dir: &Path) -> Result<()> {
        write_table(dir, FILES[2], runs(&self.runs)?)?;
        self.write(dir)
    }

    /// Reads the three files back. Rows of a run that didn't come to its own row, because
    /// the program was killed while it wrote, are left out.
    pub fn read(dir: &Path) -> Result<Records> {
        let mut records = Records {
            timeline: read(&dir.join(FILES[0]), &no_fixed(&["device", "host"]), read_timeline)?,
            positions: read(&dir.join(FILES[1]), &[], read_positions)?,
            runs: read(&dir.join(FILES[2]), &added_to_runs(), read_runs)?,
        };
        if let Err(problem) = plausible::check(&records) {
            bad_input!(
                "{}: {problem}: not records of ablation; run the experiment again",
                dir.join(FILES[2]).display()
            );
        }
        let started: HashMap<u32, i64> = records.runs.iter().map(|r| (r.run, r.started_unix_ms)).collect();
        if started.len() < records.runs.len() {
            bad_input!("{}: a run's number stands twice; run the experiment again", dir.join(FILES[2]).display());
        }
        let timeline = records.timeline.iter().map(|p| (FILES[0], p.run, p.started_unix_ms));
        let positions = records.positions.iter().map(|p| (FILES[1], p.run, p.started_unix_ms));
        for (file, run, start) in timeline.chain(positions) {
            if started.get(&run).is_some_and(|s| *s != start) {
                bad_input!(
                    "{}: its run {run} is not that of {}: the files are not of one ladder; put those that were \
                     written together back, or run the experiment again",
                    dir.join(file).display(),
                    FILES[2]
                );
            }
        }
        records.timeline.retain(|p| started.contains_key(&p.run));
        records.positions.retain(|p| started.contains_key(&p.run));
        Ok(records)
    }
}

pub(super) fn write_table(dir: &Path, file: &str, mut table: DataFrame) -> Result<()> {
    write_whole(&dir.join(file), |out| {
        ParquetWriter::new(out).finish(&mut table)?;
        Ok(())
    })
}

/// Reads a file's rows; columns that it lacks as `added` says.
pub(super) fn read<R>(path: &Path, added: &[Added], rows: impl FnOnce(&DataFrame) -> Result<Vec<R>>) -> Result<Vec<R>> {
    let missing = |problem: String| {
        let others = FILES.iter().any(|file| path.with_file_name(file).is_file());
        let advice = match others {
            true => "the folder's other files stand alone without it: run the experiment again",
            false => "give the folder that `ablation run --out` wrote",
        };
        bad_input!("{}: {problem}; {advice}", path.display())
    };
    // A pipe would never end.
    let (file, bytes) = match path.metadata() {
        Ok(metadata) if !metadata.is_file() => return missing("not a file".to_string()),
        Ok(metadata) => match File::open(path) {
            Ok(file) => (file, metadata.len()),
            Err(error) => return missing(error.to_string()),
        },
        Err(error) => return missing(error.to_string()),
    };
    let parsed = guarded(path, bytes, "run the experiment again", || {
        let mut table = ParquetReader::new(file).finish()?;
        for Added { name, value } in added {
            if table.column(name).is_err() {
                table.with_column(Column::new_scalar(name.as_str().into(), value.clone(), table.height()))?;
            }
        }
        anyhow::Ok((rows(&table), table.height()))
    });
    match parsed {
        Some(Ok((Ok(rows), height))) if rows.len() == height => Ok(rows),
        Some(Ok((Err(error), _))) => bad_input!(
            "{}: {error}; it is not from this version of ablation: render it with the version that wrote it, or run the \
             experiment again",
            path.display()
        ),
        Some(Err(error)) => {
            bad_input!("{}: not a whole Parquet file: {error}; run the experiment again", path.display())
        }
        Some(Ok(_)) | None => bad_input!("{}: not a whole Parquet file; run the experiment again", path.display()),
    }
}
