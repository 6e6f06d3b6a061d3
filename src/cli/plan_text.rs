//! What `ablation plan` prints: as text, and as JSON.

use serde_json::{Value, json as value};

use crate::columns::columns;
use crate::ladder::experiment::Experiment;
use crate::memory::category::{Bytes, Category};
use crate::model::config::ModelConfig;
use crate::model::rope::Rope;
use crate::plan::ceilings::Ceilings;
use crate::plan::compare::{Change, most_helpful};
use crate::plan::{Plan, format_flops};
use crate::train::judge;
use crate::train::toggles::Auto;
use crate::units::{format_bytes, format_seconds, format_tokens};

/// The plan of one model, with what belongs to it.
pub struct Answer<'a> {
    pub model: &'a ModelConfig,
    pub auto: Auto,
    pub plan: &'a Plan,
    pub ceilings: &'a [Ceilings],
    pub changes: &'a [Change],
    pub compare: bool,
    /// Whether the room in host memory is that of the machine that plans.
    pub host_is_here: bool,
}

/// The plan of a rung.
pub struct Rung {
    pub name: String,
    /// What ends it at its length.
    pub ends_at: &'static str,
    pub plan: Plan,
}

fn ranks(plan: &Plan) -> String {
    match plan.toggles.ranks {
        1 => "1 rank".to_string(),
        n => format!("{n} ranks ({})", plan.toggles.cp.key()),
    }
}

/// The categories that hold anything, with a line for all.
fn categories(plan: &Plan) -> String {
    let bytes = plan.rank.device.bytes;
    let held = Category::ALL.into_iter().filter(|c| bytes.of(*c) > 0);
    let mut rows: Vec<Vec<String>> =
        held.map(|c| vec![format!("  {}", c.label()), format_bytes(bytes.of(c))]).collect();
    let of = plan.room.device.map_or(String::new(), |room| format!(" of {}", format_bytes(room)));
    rows.push(vec!["  all".to_string(), format_bytes(bytes.total())]);
    columns(&rows).trim_end().to_string() + &of + "\n"
}

fn floors(plan: &Plan, ceilings: &[Ceilings]) -> String {
    let head = ["", "step", "attention", "its backward", "products", "rows", "host link", "between GPUs"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    for c in ceilings {
        let f = c.floor(plan);
        let parts = [f.step(), f.attention, f.attention_backward, f.matmul, f.memory, f.host, f.link];
        let mut row = vec![format!("  {}", c.name)];
        row.extend(parts.map(format_seconds));
        rows.push(row);
    }
    let sources = ceilings.iter().map(|c| format!("  {}: {}\n", c.name, c.source.trim()));
    columns(&rows) + &sources.collect::<String>()
}

fn change_rows(plan: &Plan, changes: &[Change], ceilings: &[Ceilings]) -> String {
    let floor = |plan: &Plan| ceilings.first().map_or(0.0, |c| c.floor(plan).step());
    let on = ceilings.first().map_or("", |c| &c.name);
    let head = ["  toggle", "saves a rank, GiB", "host a rank", &format!("costs, s on {on}"), "fits"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    for c in changes {
        let saved = (plan.device_bytes() as f64 - c.plan.device_bytes() as f64) / f64::from(1u32 << 30);
        rows.push(vec![
            format!("  {}", c.what),
            format!("{saved:+.2}").replace('-', "−"),
            format_bytes(c.plan.host_bytes()),
            format!("{:+.3}", floor(&c.plan) - floor(plan)).replace('-', "−"),
            if c.plan.over().none() { "yes" } else { "no" }.to_string(),
        ]);
    }
    columns(&rows)
}

/// The verdict, and what helps where it doesn't fit.
fn verdict(plan: &Plan, changes: &[Change]) -> String {
    let mut verdict = plan.verdict();
    if plan.over().none() {
        return verdict;
    }
    match most_helpful(plan, changes) {
        Some(change) => {
            let then = change.plan.verdict();
            verdict += &format!("\nmost helpful single toggle: {}: {} a rank, {then}", change.what, {
                format_bytes(change.plan.device_bytes())
            });
        }
        None => verdict += "\nno single toggle makes it fit or brings it nearer",
    }
    verdict
}

/// The plan of one model as text.
pub fn text(a: &Answer) -> String {
    let (plan, t) = (a.plan, &a.plan.toggles);
    let layers = a.model.num_hidden_layers;
    let mut out = format!(
        "{}, {} parameters: {} tokens on {}\n",
        a.model.name,
        format_tokens(a.model.parameters()),
        format_tokens(plan.length),
        ranks(plan)
    );
    let chosen = if a.auto.any() { " (chosen)" } else { "" };
    out += &format!("loss {}; tile {}; moments {}\n", t.loss.describe(), format_tokens(t.tile as u64), t.moments.key());
    out += &format!("kept{chosen}: {}\n", t.describe_keep(layers));
    if !t.rope.covers(plan.length) || (plan.length > a.model.max_position_embeddings && !is_yarn(a)) {
        let factor = plan.length as f64 / a.model.max_position_embeddings as f64;
        out += &format!("positions beyond the model's {}: ", format_tokens(a.model.max_position_embeddings));
        out += &format!("train with a YaRN factor of {factor:.1} or more\n");
    }
    out += &format!("\non the device, a rank, at the highest moment ({}):\n", plan.peak_at());
    out += &categories(plan);
    let room = match (plan.room.host, a.host_is_here) {
        (Some(host), true) => format!(", of {} that this machine gives (--host for another)", format_bytes(host)),
        (Some(host), false) => format!(", of {}", format_bytes(host)),
        (None, _) => String::new(),
    };
    let node = format!("{} a node of {}{room}", format_bytes(plan.node_bytes()), plan.node_ranks);
    out += &format!("\npinned host memory   {} a rank, {node}\n", format_bytes(plan.host_bytes()));
    let c = &plan.rank.counts;
    let (into, away) = (format_bytes(c.host_in_bytes), format_bytes(c.host_out_bytes));
    out += &format!("host link            {away} out, {into} back, a step and rank\n");
    out += &format!("between GPUs         {} sent, a step and rank\n", format_bytes(c.communication_bytes));
    let (model, all) = (a.model.model_flops(plan.length), plan.hardware_flops());
    out += &format!("model FLOPs          {} a step (causal, nothing computed again)\n", format_flops(model));
    out += &format!("hardware FLOPs       {} a step, {:.2} times\n", format_flops(all), all as f64 / model as f64);
    out += "\nfloor on the time of a step, s, at measured ceilings:\n";
    out += &floors(plan, a.ceilings);
    if a.compare {
        out += "\none toggle at a time, at this length:\n";
        out += &change_rows(plan, a.changes, a.ceilings);
    }
    out + "\n" + &verdict(plan, a.changes)
}

fn is_yarn(a: &Answer) -> bool {
    matches!(a.plan.toggles.rope, Rope::Yarn(_))
}

/// The plans of an experiment's rungs as text.
pub fn rungs_text(e: &Experiment, rungs: &[Rung], ceilings: &[Ceilings]) -> String {
    let mut head: Vec<String> =
        ["rung", "ranks", "tokens", "ended by", "peak a rank", "it stands in", "most of it", "pinned a node"]
            .map(str::to_string)
            .to_vec();
    head.extend(ceilings.iter().map(|c| format!("s/step, {}", c.name)));
    let mut rows = vec![head];
    for rung in rungs {
        let plan = &rung.plan;
        let bytes = plan.rank.device.bytes;
        let largest = Category::ALL.into_iter().max_by_key(|c| bytes.of(*c)).unwrap_or(Category::Weights);
        let mut row = vec![
            rung.name.clone(),
            plan.toggles.ranks.to_string(),
            format_tokens(plan.length),
            rung.ends_at.to_string(),
            format_bytes(plan.device_bytes()),
            plan.peak_at(),
            format!("{} {}", largest.label(), format_bytes(bytes.of(largest))),
            format_bytes(plan.node_bytes()),
        ];
        row.extend(ceilings.iter().map(|c| format_seconds(c.floor(plan).step())));
        rows.push(row);
    }
    let budget = e.budget.map_or("no budget".to_string(), |b| format!("{} a rank", format_bytes(b)));
    let what = format!("{}: {}, {} parameters, {budget}", e.name, e.model.name, format_tokens(e.model.parameters()));
    let mut out = format!("{what}\n\n{}\ns/step is a floor: FLOPs and bytes at measured ceilings.", columns(&rows));
    for rung in rungs.iter().filter(|r| matches!(r.plan.toggles.rope, Rope::Yarn(_))) {
        let said = judge::not_covered(&rung.plan.toggles.rope, &e.model, rung.plan.length);
        said.iter().for_each(|said| out += &format!("\n{}: {said}", rung.name));
    }
    out
}

fn bytes_json(bytes: &Bytes) -> Value {
    Category::ALL
        .into_iter()
        .map(|c| (c.key().to_string(), value!(bytes.of(c))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn plan_json(plan: &Plan, model: &ModelConfig, ceilings: &[Ceilings]) -> Value {
    let (t, c, over) = (&plan.toggles, &plan.rank.counts, plan.over());
    let floors = ceilings.iter().map(|ceiling| {
        let f = ceiling.floor(plan);
        value!({
            "device": ceiling.name, "source": ceiling.source, "step_seconds": f.step(),
            "attention_seconds": f.attention, "attention_backward_seconds": f.attention_backward,
            "matmul_seconds": f.matmul, "memory_seconds": f.memory, "host_link_seconds": f.host,
            "link_seconds": f.link,
        })
    });
    let (host_inputs, host_attention) = t.offload.layers();
    let layers = model.num_hidden_layers;
    let kept = layers - t.keep.attention_from(layers);
    value!({
        "length_tokens": plan.length,
        "toggles": {
            "loss": t.loss.describe(), "tile_tokens": t.tile, "moments": t.moments.key(), "cp": t.cp.key(),
            "ranks": t.ranks, "every": t.every, "keep_attention_layers": kept,
            "offload_input_layers": host_inputs.min(layers), "offload_attention_layers": host_attention.min(kept),
        },
        "device": {
            "peak_bytes": plan.device_bytes(), "budget_bytes": plan.room.device,
            "phase": plan.rank.device.mark.phase.key(), "layer": plan.rank.device.mark.layer,
            "by_category_bytes": bytes_json(&plan.rank.device.bytes),
        },
        "host": {
            "rank_bytes": plan.host_bytes(), "node_bytes": plan.node_bytes(), "node_ranks": plan.node_ranks,
            "room_bytes": plan.room.host,
        },
        "step_of_a_rank": {
            "host_out_bytes": c.host_out_bytes, "host_in_bytes": c.host_in_bytes,
            "sent_bytes": c.communication_bytes, "memory_bytes": c.memory_bytes as f64,
            "matmul_flops": c.matmul_flops as f64, "attention_flops": c.attention_flops as f64,
            "attention_backward_flops": c.attention_backward_flops as f64,
        },
        "model_flops": model.model_flops(plan.length) as f64,
        "hardware_flops": plan.hardware_flops() as f64,
        "floors": floors.collect::<Vec<_>>(),
        "fits": over.none(), "over_device_bytes": over.device, "over_host_bytes": over.host,
        "verdict": plan.verdict(),
    })
}

fn model_json(model: &ModelConfig) -> Value {
    value!({ "name": model.name, "parameters": model.parameters(), "source": crate::model::published::source(model) })
}

/// The plan of one model as JSON.
pub fn json(a: &Answer) -> Value {
    let change = |c: &Change| value!({ "toggle": c.what, "plan": plan_json(&c.plan, a.model, a.ceilings) });
    let helps = (!a.plan.over().none()).then(|| most_helpful(a.plan, a.changes)).flatten();
    value!({
        "model": model_json(a.model),
        "plan": plan_json(a.plan, a.model, a.ceilings),
        "most_helpful": helps.map(change),
        "compare": if a.compare { a.changes.iter().map(change).collect() } else { Vec::new() },
    })
}

/// The plans of an experiment's rungs as JSON.
pub fn rungs_json(e: &Experiment, rungs: &[Rung], ceilings: &[Ceilings]) -> Value {
    let rung =
        |r: &Rung| value!({ "rung": r.name, "ended_by": r.ends_at, "plan": plan_json(&r.plan, &e.model, ceilings) });
    value!({ "experiment": e.name, "model": model_json(&e.model), "rungs": rungs.iter().map(rung).collect::<Vec<_>>() })
}
