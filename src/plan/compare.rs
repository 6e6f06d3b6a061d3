//! One toggle at a time: what each saves and what it costs, each tried on the dry device.

use anyhow::Result;

use super::{Plan, Setting};
use crate::train::toggles::{ContextParallel, Keep, Loss, Moments, Offload, Toggles};

/// A setting that differs from the plan's in one toggle.
#[derive(Debug, Clone)]
pub struct Change {
    /// As it is written in an experiment file: `offload = "host"`.
    pub what: String,
    /// Whether it takes more GPUs.
    pub more_ranks: bool,
    pub plan: Plan,
}

/// The other values of each toggle, one at a time.
fn others(t: &Toggles, layers: usize) -> Vec<(String, Toggles)> {
    let mut all: Vec<(String, Toggles)> = Vec::new();
    let mut add = |what: &str, toggles: Toggles| all.push((what.to_string(), toggles));
    match t.loss {
        Loss::Full => add("loss = \"chunked\"", Toggles { loss: Loss::Chunked { rows: 256 }, ..t.clone() }),
        Loss::Chunked { .. } => add("loss = \"full\"", Toggles { loss: Loss::Full, ..t.clone() }),
    }
    // Numbers of layers belong to the other toggle's own value.
    let offload_all = if t.offload == Offload::None { Offload::None } else { Offload::Host };
    match t.keep {
        Keep::Inputs => add("keep = \"attention\"", Toggles { keep: Keep::Attention, ..t.clone() }),
        Keep::Attention | Keep::Layers(_) => {
            add("keep = \"inputs\"", Toggles { keep: Keep::Inputs, offload: offload_all, ..t.clone() });
        }
    }
    if t.offload != Offload::Host {
        add("offload = \"host\"", Toggles { offload: Offload::Host, ..t.clone() });
    }
    if t.offload != Offload::None {
        add("offload = \"none\"", Toggles { offload: Offload::None, ..t.clone() });
    }
    let every = if t.every == 1 { 2.min(layers) } else { 1 };
    if every != t.every {
        add(&format!("every = {every}"), Toggles { every, ..t.clone() });
    }
    for tile in [1024, 4096, 16_384] {
        if tile != t.tile {
            add(&format!("tile = {tile}"), Toggles { tile, ..t.clone() });
        }
    }
    match t.moments {
        Moments::F32 => add("moments = \"bf16\"", Toggles { moments: Moments::Bf16, ..t.clone() }),
        Moments::Bf16 => add("moments = \"f32\"", Toggles { moments: Moments::F32, ..t.clone() }),
    }
    match t.cp {
        ContextParallel::Ring => add("cp = \"ulysses\"", Toggles { cp: ContextParallel::Ulysses, ..t.clone() }),
        ContextParallel::Ulysses => add("cp = \"ring\"", Toggles { cp: ContextParallel::Ring, ..t.clone() }),
        ContextParallel::None => {}
    }
    let cp = if t.cp == ContextParallel::None { ContextParallel::Ring } else { t.cp };
    let ranks = t.ranks * 2;
    let what = if t.cp == cp { format!("ranks = {ranks}") } else { format!("cp = \"ring\", ranks = {ranks}") };
    add(&what, Toggles { cp, ranks, ..t.clone() });
    all
}

/// All changes of one toggle that the model allows, planned at the plan's length.
pub fn changes(setting: &Setting, plan: &Plan) -> Result<Vec<Change>> {
    let t = &plan.toggles;
    let valid = |(_, toggles): &(String, Toggles)| toggles.validate(setting.model).is_ok();
    let planned = |(what, toggles): (String, Toggles)| {
        Ok(Change { what, more_ranks: toggles.ranks > t.ranks, plan: setting.with(toggles, plan.length)? })
    };
    others(t, setting.model.num_hidden_layers).into_iter().filter(valid).map(planned).collect()
}

/// The change that brings a plan that doesn't fit nearest to its room, on the GPUs that are
/// there if one of those is enough, else on more if that is.
pub fn most_helpful<'a>(plan: &Plan, changes: &'a [Change]) -> Option<&'a Change> {
    let left = |c: &&Change| c.plan.over().device.saturating_add(c.plan.over().host);
    let before = plan.over().device.saturating_add(plan.over().host);
    // Of those that fit, the one that leaves the most room.
    let order = |c: &&Change| (left(c), c.plan.device_bytes());
    let helps = |c: &&Change| left(c) < before;
    let here = changes.iter().filter(|c| !c.more_ranks).filter(helps).min_by_key(order);
    let more = changes.iter().filter(|c| c.more_ranks).filter(helps).min_by_key(order);
    match (here, more) {
        (Some(here), Some(more)) if !here.plan.over().none() && more.plan.over().none() => Some(more),
        (here, more) => here.or(more),
    }
}
