//! What the page says: the finding first, then what it rests on.

use super::document::{Block, Table, heading, paragraph};
use super::figure::Figure;
use super::guide;
use super::ladder::{Ladder, Rung, finding};
use crate::memory::category::Category;
use crate::record::Records;
use crate::record::run::{Run, Status};
use crate::units::{format_bytes, format_tokens};

/// A figure's block with the sentences that lead to it.
fn figure(blocks: &mut Vec<Block>, figures: &[Figure], name: &str, title: &str, text: &str) {
    let Some(figure) = figures.iter().find(|f| f.name == name) else { return };
    blocks.push(heading(2, title));
    blocks.push(paragraph(text));
    blocks.push(Block::Figure { name: figure.name.clone(), title: figure.title.clone() });
}

fn ladder_table(ladder: &Ladder) -> Table {
    let mut table = Table::new(&[
        "rung",
        "what it adds",
        "ranks",
        "tokens",
        &ladder.ratio_head(),
        "peak a rank",
        "room left",
        "host a rank",
        "loss",
        "s/step",
        "ended at",
    ]);
    for rung in &ladder.rungs {
        let host = rung.longest.filter(|r| r.peak_host_bytes > 0).map(|r| format_bytes(r.peak_host_bytes));
        table.rows.push(vec![
            rung.name.to_string(),
            rung.adds.clone(),
            rung.longest.map_or(String::new(), |r| r.ranks.to_string()),
            rung.tokens(),
            rung.ratio(ladder.base()),
            rung.peak(),
            rung.room(),
            host.unwrap_or_default(),
            rung.loss(),
            rung.step_seconds().map_or(String::new(), |s| format!("{s:.2}")),
            rung.ended_by(),
        ]);
    }
    table
}

/// Largest relative difference of pairs, in per cent.
fn largest_percent(pairs: impl Iterator<Item = (u64, u64)>) -> f64 {
    pairs.filter(|(_, b)| *b > 0).map(|(a, b)| (a as f64 / b as f64 - 1.0).abs() * 100.0).fold(0.0, f64::max)
}

fn memory_text(records: &Records) -> String {
    let method = "Every buffer holds a lease on its rank's ledger, which refuses what would exceed the budget. Beside \
                  it stands a figure that is not the ledger's: a counting allocator's peak of the whole process, \
                  device and host memory of all ranks together. On the CPU, device and host memory are both RAM: the \
                  ledger keeps their books apart.";
    let ok: Vec<&Run> = records.runs.iter().filter(|r| r.status == Status::Ok).collect();
    if ok.is_empty() {
        return format!("{method} No run ended well: there is nothing to compare.");
    }
    let percent = largest_percent(ok.iter().map(|r| (r.peak_process_measured_bytes, r.peak_process_ledger_bytes)));
    let apart = |r: &&Run| r.peak_process_measured_bytes.abs_diff(r.peak_process_ledger_bytes);
    let bytes = format_bytes(ok.iter().map(apart).max().unwrap_or(0));
    let plan = match largest_percent(ok.iter().map(|r| (r.predicted_peak_device_bytes, r.peak_device_bytes))) {
        0.0 => "equals the ledger to the byte".to_string(),
        most => format!("differs from the ledger by at most {most:.2} %"),
    };
    format!(
        "{method} Over the {} runs that ended well the two differ by at most {percent:.2} %, and by at most {bytes}, \
         which no lease accounts for; the plan, which runs the same step on shapes alone, {plan}.",
        ok.len(),
    )
}

/// What the figure of the categories shows, with what offload holds elsewhere.
fn categories_text(rungs: &[Rung]) -> String {
    let host = rungs.iter().filter_map(|r| r.longest.filter(|l| l.peak_host_bytes > 0));
    let host: Vec<String> = host.map(|l| format!("{} {}", l.rung, format_bytes(l.peak_host_bytes))).collect();
    let host = if host.is_empty() {
        String::new()
    } else {
        format!(" Not in the figure is what stands in host memory, a rank: {}.", host.join(", "))
    };
    format!(
        "What the fullest rank holds at the highest moment of each rung's longest run. The lengths differ: it shows \
         what fills a budget, not what a technique saves at one length.{host}"
    )
}

/// How the time of ranks is to be read: on the CPU they share its cores.
fn time_text(rungs: &[Rung]) -> &'static str {
    let shared = rungs.iter().filter_map(|r| r.longest).any(|l| l.ranks > 1 && l.device == "cpu");
    if shared {
        "Seconds of a step by length. Ranks of one machine share its cores: more ranks buy memory here, not time."
    } else {
        "Seconds of a step by length."
    }
}

/// How sure the longest lengths are.
fn confirmed_text(ladder: &Ladder) -> &'static str {
    let budget = ladder.rungs.iter().filter_map(|r| r.longest).all(|l| l.budget_bytes.is_some());
    if budget && !ladder.rungs.is_empty() && ladder.rungs.iter().all(Rung::is_finished) {
        "A rung's longest length is found by the plan and confirmed twice: that length was run, and so was the next \
         one, which the ledger refused (unless the experiment ends the rung before)."
    } else {
        "A rung's tokens are the longest length that was run to its end. Where the last column names no greater length \
         and no end by the experiment, a longer one may fit."
    }
}

/// A row for each category of a run that ended well in which plan and ledger differ; none if
/// they nowhere do.
fn categories_table(runs: &[Run]) -> Option<Table> {
    let mut table = Table::new(&["run", "rung", "tokens", "category", "predicted", "measured", "error, %"]);
    for run in runs.iter().filter(|r| r.status == Status::Ok) {
        let Some(planned) = run.predicted_at_peak_device else { continue };
        for category in Category::ALL {
            let (planned, measured) = (planned.of(category), run.at_peak_device.of(category));
            if planned == measured {
                continue;
            }
            let error = (planned as f64 / measured as f64 - 1.0) * 100.0;
            table.rows.push(vec![
                run.run.to_string(),
                run.rung.clone(),
                format_tokens(run.length_tokens),
                category.label().to_string(),
                format_bytes(planned),
                format_bytes(measured),
                if measured > 0 { format!("{error:.2}") } else { String::new() },
            ]);
        }
    }
    (!table.rows.is_empty()).then_some(table)
}

fn attempts_table(runs: &[Run]) -> Table {
    let mut table = Table::new(&[
        "run",
        "rung",
        "for",
        "tokens",
        "status",
        "peak a rank",
        "planned",
        "process, ledger",
        "process, measured",
        "loss",
        "gradient norm",
        "tokens/s",
        "model GFLOP",
        "all GFLOP",
    ]);
    for r in runs {
        let gflop = |flops: u64| format!("{:.1}", flops as f64 / 1e9);
        let last = |values: &[f64]| values.last().map_or(String::new(), |v| format!("{v:.4}"));
        table.rows.push(vec![
            r.run.to_string(),
            r.rung.clone(),
            r.purpose.clone(),
            format_tokens(r.length_tokens),
            r.status.key().to_string(),
            format_bytes(r.peak_device_bytes),
            format_bytes(r.predicted_peak_device_bytes),
            format_bytes(r.peak_process_ledger_bytes),
            format_bytes(r.peak_process_measured_bytes),
            last(&r.loss),
            last(&r.gradient_norm),
            r.tokens_per_second.map_or(String::new(), |t| format!("{t:.0}")),
            gflop(r.model_flops),
            if r.hardware_flops > 0 { gflop(r.hardware_flops) } else { String::new() },
        ]);
    }
    table
}

fn provenance(run: &Run) -> Table {
    let mut table = Table::new(&["what", "value"]);
    let mut row = |what: &str, value: String| table.rows.push(vec![what.to_string(), value]);
    row("program", format!("ablation {}, revision {}", run.program_version, run.git_revision));
    if let Some(path) = &run.store_path {
        row("built by Nix", path.clone());
    }
    row("device", format!("{}: {}, {} cores", run.device, run.cpu, run.cores));
    row("host", run.host_name.clone());
    row(
        "model",
        format!(
            "{}: {} parameters, {} layers, hidden {}, {} heads and {} KV heads of {}, vocabulary {}, {} head",
            run.model,
            format_tokens(run.parameters),
            run.layers,
            run.hidden_size,
            run.attention_heads,
            run.key_value_heads,
            run.head_dim,
            format_tokens(u64::from(run.vocabulary)),
            if run.tied_head { "tied" } else { "untied" },
        ),
    );
    row("text", run.text.clone());
    row("seed", run.seed.to_string());
    table
}

/// The page's title.
pub fn title(records: &Records) -> String {
    let name = records.runs.first().map_or("nothing", |r| &r.experiment);
    format!("ablation: the ladder “{name}”")
}

/// The page.
pub fn blocks(records: &Records, ladder: &Ladder, figures: &[Figure]) -> Vec<Block> {
    let mut blocks = vec![heading(1, title(records)), paragraph(finding(ladder))];
    if let Some(figure) = figures.iter().find(|f| f.name == "ladder") {
        blocks.push(Block::Figure { name: figure.name.clone(), title: figure.title.clone() });
    }
    blocks.push(Block::Table(ladder_table(ladder)));
    blocks.push(paragraph(confirmed_text(ladder)));
    blocks.push(heading(2, "The guide's ladder"));
    blocks.push(paragraph(
        "The figures of Hugging Face TRL's guide “Training Beyond 1M Tokens”, as it states them, for Qwen3-4B on cards \
         of 80 GB (its GB are GiB). They are the guide's, not measured here, but for one column: the ratio that a rung \
         with the same technique reached in this ladder. It depends on the sizes of model and \
         budget, which an experiment may choose for the guide's proportions, as the one named small does: a ratio near \
         the guide's is then by design, and no confirmation of it.",
    ));
    blocks.push(Block::Table(guide::table(ladder)));
    figure(&mut blocks, figures, "categories", "What the memory holds", &categories_text(&ladder.rungs));
    figure(
        &mut blocks,
        figures,
        "timelines",
        "Memory over time",
        "Rank 0 of each rung's longest run, at the highest moment of each layer and phase of the step.",
    );
    figure(
        &mut blocks,
        figures,
        "positions",
        "Loss by position",
        "YaRN keeps positions within the range that a model was trained on. A model that begins untrained has no such \
         range, and its curves may show little; the title says what they show.",
    );
    figure(&mut blocks, figures, "step-time", "Time", time_text(&ladder.rungs));
    blocks.push(heading(2, "How memory was measured"));
    blocks.push(paragraph(memory_text(records)));
    if let Some(predicted) = figures.iter().find(|f| f.name == "predicted") {
        blocks.push(Block::Figure { name: predicted.name.clone(), title: predicted.title.clone() });
    }
    if let Some(table) = categories_table(&records.runs) {
        blocks.push(paragraph("Predicted and measured by category, where they differ at the device's peak:"));
        blocks.push(Block::Table(table));
    }
    blocks.push(heading(2, "Every attempt"));
    blocks.push(Block::Table(attempts_table(&records.runs)));
    for run in records.runs.iter().filter(|r| !r.reason.is_empty()) {
        blocks.push(paragraph(format!(
            "Run {}, {} at {} tokens ({}):",
            run.run,
            run.rung,
            format_tokens(run.length_tokens),
            run.status.key()
        )));
        blocks.push(Block::Pre(run.reason.clone()));
    }
    if let Some(run) = records.runs.first() {
        blocks.push(heading(2, "To run it again"));
        blocks.push(Block::Table(provenance(run)));
        blocks.push(paragraph("Save the experiment below as experiment.toml, then:"));
        blocks.push(Block::Pre("ablation run experiment.toml --out DIR\nablation report DIR".to_string()));
        blocks.push(Block::Pre(run.experiment_toml.clone()));
    }
    blocks
}
