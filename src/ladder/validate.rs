//! What an experiment must be, wherever its values come from.

use std::collections::HashSet;

use anyhow::Result;

use super::experiment::{Experiment, Rung, TextSource};
use crate::bad_input;
use crate::model::block::SHORTEST_TILE;
use crate::model::config::ModelConfig;
use crate::train::toggles::{ContextParallel, Loss, Toggles};

/// Beyond this many tokens positions leave 32 bits.
const LONGEST: u64 = 1 << 31;

/// More rungs fit on no page.
const MOST_RUNGS: usize = 200;
/// More lengths fit on no curve.
const MOST_LENGTHS: usize = 1000;

/// Whether it can be a name: names stand in figures and in the names of folders.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Says what is wrong with an experiment, by key.
pub fn experiment(e: &Experiment) -> Result<()> {
    if !is_name(&e.name) {
        bad_input!("name = `{}`: a name is made of a to z, 0 to 9 and -", e.name);
    }
    e.model.validate()?;
    if e.steps == 0 || e.curve_steps == 0 {
        bad_input!("steps and curve_steps must be positive");
    }
    if !(e.learning_rate.is_finite() && e.learning_rate >= 0.0) {
        bad_input!("learning_rate = {}: it must be a number, 0 or above", e.learning_rate);
    }
    if !(e.max_grad_norm.is_finite() && e.max_grad_norm > 0.0) {
        bad_input!("max_grad_norm = {}: it must be a number above 0", e.max_grad_norm);
    }
    let texts = match &e.text.source {
        TextSource::Books(books) => books.len(),
        TextSource::Files(files) => files.len(),
    };
    if texts == 0 {
        bad_input!("[text] names no text");
    }
    if e.rungs.is_empty() {
        bad_input!("there is no [[rung]]");
    }
    if e.rungs.len() > MOST_RUNGS {
        bad_input!("{} rungs: at most {MOST_RUNGS}", e.rungs.len());
    }
    let mut names = HashSet::new();
    for r in &e.rungs {
        if !is_name(&r.name) {
            bad_input!("rung `{}`: a name is made of a to z, 0 to 9 and -", r.name);
        }
        if !names.insert(&r.name) {
            bad_input!("rung `{}` stands twice", r.name);
        }
        if let Err(error) = rung(r, &e.model) {
            bad_input!("rung `{}`: {error}", r.name);
        }
    }
    Ok(())
}

/// Says what is wrong with a setting for a model; returns the pieces into which it splits
/// a sequence, of which lengths must be multiples.
pub fn toggles(t: &Toggles, model: &ModelConfig) -> Result<u64> {
    t.rope.validate()?;
    if t.ranks == 0 || t.ranks > 512 {
        bad_input!("ranks = {}: from 1 to 512", t.ranks);
    }
    if let Loss::Chunked { rows } = t.loss
        && rows < SHORTEST_TILE
    {
        bad_input!("chunk_rows = {rows}: at least {SHORTEST_TILE}");
    }
    if t.tile < SHORTEST_TILE {
        bad_input!("tile = {}: at least {SHORTEST_TILE} tokens", t.tile);
    }
    if t.every == 0 || t.every > model.num_hidden_layers {
        bad_input!("every = {}: from 1 to the model's {} layers", t.every, model.num_hidden_layers);
    }
    let (heads, kv_heads) = (model.num_attention_heads, model.num_key_value_heads);
    Ok(match t.cp {
        ContextParallel::None if t.ranks > 1 => {
            bad_input!(
                "ranks = {} with cp = \"none\": nothing would be split; set cp = \"ring\" or \"ulysses\"",
                t.ranks
            )
        }
        ContextParallel::None => 1,
        _ if t.ranks == 1 => bad_input!("cp is set but ranks = 1: set ranks, or cp = \"none\""),
        ContextParallel::Ring => 2 * t.ranks,
        ContextParallel::Ulysses if !heads.is_multiple_of(t.ranks) => {
            bad_input!("ulysses shares {heads} attention heads out over ranks: {} does not divide them", t.ranks)
        }
        ContextParallel::Ulysses if !kv_heads.is_multiple_of(t.ranks) && !t.ranks.is_multiple_of(kv_heads) => {
            bad_input!("ulysses: {kv_heads} KV heads and {} ranks: one must divide the other", t.ranks)
        }
        ContextParallel::Ulysses => t.ranks,
    } as u64)
}

fn rung(r: &Rung, model: &ModelConfig) -> Result<()> {
    let pieces = toggles(&r.toggles, model)?;
    if r.grid == 0 || r.grid >= LONGEST {
        bad_input!("grid = {}: from 1 to {} tokens", r.grid, LONGEST - 1);
    }
    if !r.grid.is_multiple_of(pieces) {
        bad_input!("grid = {}: it must be a multiple of {pieces}, the pieces that its ranks take", r.grid);
    }
    if r.curve.len() > MOST_LENGTHS {
        bad_input!("curve: {} lengths: at most {MOST_LENGTHS}", r.curve.len());
    }
    for (key, length) in r.stop_at.iter().map(|l| ("stop_at", *l)).chain(r.curve.iter().map(|l| ("curve", *l))) {
        if length == 0 || length >= LONGEST {
            bad_input!("{key}: {length} tokens: from 1 to {}", LONGEST - 1);
        }
        if !length.is_multiple_of(r.grid) {
            bad_input!("{key}: {length} tokens are no multiple of grid = {}", r.grid);
        }
    }
    Ok(())
}
