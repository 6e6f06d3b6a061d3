//! What rows can be: bounds that keep a page from growing without end and its text clean.

use std::collections::HashSet;

use super::Records;

/// More tokens than this has no sequence.
const MOST_TOKENS: u64 = 1 << 48;
/// Characters of a name, and of a longer text.
const LONGEST_NAME: usize = 1000;
const LONGEST_TEXT: usize = 16 << 20;
/// Rungs of a ladder, and runs of a folder.
const MOST_RUNGS: usize = 1000;
const MOST_RUNS: usize = 100_000;

/// What is wrong with the rows, by column.
pub(super) fn check(records: &Records) -> Result<(), String> {
    let runs = &records.runs;
    if runs.len() > MOST_RUNS {
        return Err(format!("{} runs: at most {MOST_RUNS}", runs.len()));
    }
    let rungs: HashSet<&str> = runs.iter().map(|r| &r.rung[..]).collect();
    if rungs.len() > MOST_RUNGS {
        return Err(format!("column `rung`: {} rungs: at most {MOST_RUNGS}", rungs.len()));
    }
    for r in runs {
        for (column, tokens) in [("length_tokens", r.length_tokens), ("padded_tokens", r.padded_tokens)] {
            if tokens > MOST_TOKENS {
                return Err(format!("column `{column}`: {tokens} tokens in run {}", r.run));
            }
        }
        let names = [
            ("experiment", &r.experiment),
            ("rung", &r.rung),
            ("purpose", &r.purpose),
            ("model", &r.model),
            ("text", &r.text),
            ("device", &r.device),
            ("program_version", &r.program_version),
            ("git_revision", &r.git_revision),
            ("host_name", &r.host_name),
            ("cpu", &r.cpu),
            ("rope", &r.rope),
            ("keep", &r.keep),
            ("offload", &r.offload),
            ("context_parallel", &r.context_parallel),
            ("moments", &r.moments),
            ("peak_phase", &r.peak_phase),
        ];
        let texts = [("reason", &r.reason), ("experiment_toml", &r.experiment_toml)];
        let bounded = names.map(|n| (n, LONGEST_NAME)).into_iter().chain(texts.map(|t| (t, LONGEST_TEXT)));
        for ((column, text), longest) in bounded {
            if text.len() > longest {
                return Err(format!("column `{column}`: {} bytes in run {}", text.len(), r.run));
            }
            // No page and no figure can hold them.
            if let Some(control) = text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t' | '\r')) {
                return Err(format!("column `{column}`: the control character {control:?} in run {}", r.run));
            }
        }
    }
    Ok(())
}
