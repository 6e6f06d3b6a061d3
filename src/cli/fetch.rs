//! `ablation fetch`: brings models and datasets from the Hugging Face hub into its cache.

use anyhow::Result;

use crate::bad_input;
use crate::hub::{Fetched, Hub, Kind, is_id};
use crate::units::format_bytes;

/// Fetch models and datasets from the Hugging Face hub into the cache that its libraries share
///
/// Honours HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE. What breaks off is
/// resumed by the next call.
#[derive(Debug, clap::Args)]
pub struct Fetch {
    /// Ids, such as Qwen/Qwen3-0.6B or emozilla/pg19
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// The split of datasets
    #[arg(long, value_name = "NAME", default_value = "train")]
    split: String,
    /// Parquet files of a dataset, the first so many (training loads others when it needs them)
    #[arg(long, value_name = "N", default_value_t = 1)]
    files: usize,
}

fn one(hub: &Hub, id: &str, command: &Fetch) -> Result<Fetched> {
    let model = match hub.fetch_model(id) {
        Ok(fetched) => return Ok(fetched),
        Err(error) => error,
    };
    // Not a model: a dataset has an address of its own.
    match hub.listing(Kind::Dataset, id) {
        Ok(_) => hub.fetch_dataset(id, &command.split, command.files),
        Err(_) => Err(model),
    }
}

/// Runs the command.
pub fn fetch(command: &Fetch) -> Result<u8> {
    if command.files == 0 {
        bad_input!("--files 0: give at least 1");
    }
    if let Some(wrong) = command.ids.iter().find(|id| !is_id(id)) {
        bad_input!("`{wrong}` is no id of the hub: write OWNER/NAME, such as Qwen/Qwen3-0.6B");
    }
    let hub = Hub::from_env()?;
    for id in &command.ids {
        let fetched = one(&hub, id, command)?;
        let of = match fetched.of > fetched.files {
            true => format!(" of {} (--files for more)", fetched.of),
            false => String::new(),
        };
        let loaded = match fetched.loaded {
            0 => "all there already".to_string(),
            loaded => format!("{loaded} loaded now"),
        };
        super::say(&format!(
            "{id}: {} files{of}, {}, {loaded}, at commit {}\n  {}",
            fetched.files,
            format_bytes(fetched.bytes),
            &fetched.commit[..fetched.commit.len().min(12)],
            fetched.snapshot.display()
        ))?;
    }
    Ok(0)
}
