//! The guide's ladder, as facts of its own: Hugging Face TRL, "Training Beyond 1M
//! Tokens" (docs/source/long_context_training.md). Its GB are GiB.

use super::document::Table;
use super::ladder::{Ladder, Rung};
use crate::record::run::Run;

/// Which of the guide's rungs a run is like, by its settings; none where it is like none of them.
fn like(run: &Run) -> Option<usize> {
    let alone = run.context_parallel == "none";
    match (run.loss_kind.as_str(), run.rope.as_str(), run.offload.as_str()) {
        (_, _, _) if !alone => Some(4),
        ("full", "default", "none") => Some(0),
        ("chunked", "default", "none") => Some(1),
        ("chunked", "yarn", "none") => Some(2),
        ("chunked", _, "host") => Some(3),
        _ => None,
    }
}

/// The guide's rungs, Qwen3-4B on cards of 80 GB, each beside the ratio that rungs like it reached here.
pub fn table(ladder: &Ladder) -> Table {
    let mut table =
        Table::new(&["the guide's rung", "GPUs", "longest, tokens", "× plain", "× plain here", "what it says"]);
    let rows = [
        ["plain loss", "1", "32,768", "1", "peak between forward and backward"],
        ["chunked loss", "1", "163,840", "5", "chunks of 256 rows"],
        ["YaRN", "1", "163,840", "5", "mean loss of the last 20k tokens 2.8, unscaled 7.3"],
        ["activation offload", "1", "262,144", "8", "at 96k tokens the peak falls from 59.9 to 48.8 GB"],
        ["context parallelism", "4", "1,048,576", "32", "63.6 GB a GPU"],
    ];
    let base = ladder.base().filter(|run| like(run) == Some(0));
    for (i, [rung, gpus, tokens, ratio, says]) in rows.into_iter().enumerate() {
        let of_kind = |r: &&Rung| r.longest.is_some_and(|l| like(l) == Some(i));
        let furthest = ladder.rungs.iter().filter(of_kind).max_by_key(|r| r.longest.map(|l| l.length_tokens));
        let here = match furthest {
            Some(r) if base.is_some() && r.stops_by_design => format!("{}, set by stop_at", r.ratio(base)),
            Some(r) => r.ratio(base),
            None => String::new(),
        };
        let cells = [rung, gpus, tokens, ratio, &here, says];
        table.rows.push(cells.map(str::to_string).to_vec());
    }
    table
}
