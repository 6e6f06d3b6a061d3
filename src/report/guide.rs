//! The guide's ladder, as facts of its own: Hugging Face TRL, "Training Beyond 1M
//! Tokens" (docs/source/long_context_training.md). Its GB are GiB.

use super::document::Table;

/// The guide's rungs beside ours: Qwen3-4B on cards of 80 GB.
pub fn table() -> Table {
    let mut table = Table::new(&["the guide's rung", "GPUs", "longest, tokens", "× plain", "what it says"]);
    let rows = [
        ["plain loss", "1", "32,768", "1", "peak between forward and backward"],
        ["chunked loss", "1", "163,840", "5", "chunks of 256 rows"],
        ["YaRN", "1", "163,840", "5", "mean loss of the last 20k tokens 2.8, unscaled 7.3"],
        ["activation offload", "1", "262,144", "8", "at 96k tokens the peak falls from 59.9 to 48.8 GB"],
        ["context parallelism", "4", "1,048,576", "32", "63.6 GB a GPU"],
    ];
    table.rows = rows.iter().map(|row| row.iter().map(|c| c.to_string()).collect()).collect();
    table
}
