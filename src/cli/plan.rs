//! `ablation plan`: whether it fits, how long it takes at least, and what buys what.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::plan_text::{Answer, Rung, json, rungs_json, rungs_text, text};
use super::toggles::{ToggleOptions, host_room};
use crate::bad_input;
use crate::device::dry::Profile;
use crate::ladder::experiment::Experiment;
use crate::ladder::validate::LONGEST;
use crate::model::config::ModelConfig;
use crate::model::rope::Rope;
use crate::model::{hf, published};
use crate::plan::ceilings::Ceilings;
use crate::plan::{Room, Setting, compare, parse_gpus};
use crate::train::toggles::Auto;
use crate::units::parse_tokens;

/// Plan without running: memory by category, FLOPs, a floor on the time, whether it fits
///
/// Runs the very training step on shapes alone. Give an experiment for each of its rungs, or
/// a model with --gpus and --length or --longest.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// An experiment file, or the name of a built-in experiment
    experiment: Option<String>,
    /// A published Qwen3 (Qwen/Qwen3-8B) or a config.json
    #[arg(long, value_name = "ID|FILE")]
    model: Option<String>,
    /// Tokens of the sequence, such as 160k or 1M
    #[arg(long, value_name = "TOKENS")]
    length: Option<String>,
    /// GPUs and the memory of each, such as 8x80GiB
    #[arg(long, value_name = "NxBYTES", requires = "model")]
    gpus: Option<String>,
    /// Host memory of a node that may be pinned, such as 2TiB [default: not checked; where the
    /// plan chooses, nine tenths of what this machine gives]
    #[arg(long, value_name = "BYTES")]
    host: Option<String>,
    /// Find the longest length that fits
    #[arg(long, conflicts_with = "length", requires = "model")]
    longest: bool,
    /// Show each toggle's other values, one at a time: what it saves and what it costs
    #[arg(long, requires = "model")]
    compare: bool,
    /// Measured ceilings of devices [default: those of an H100 and an H200]
    #[arg(long, value_name = "FILE")]
    ceilings: Option<PathBuf>,
    /// Print one JSON object in place of the text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    toggles: ToggleOptions,
}

/// What is left to the plan unless it is asked for.
const AUTO: Auto = Auto { keep: true, offload: true, every: true };

fn model(name: &str) -> Result<(ModelConfig, Rope)> {
    if let Some(config) = published::find(name) {
        let rope = Rope::Default { theta: config.rope_theta };
        return Ok((config, rope));
    }
    let path = Path::new(name);
    if !path.exists() {
        let ids: Vec<&str> = published::ids().collect();
        bad_input!("--model {name}: neither a file nor one of the published: {}", ids.join(", "));
    }
    hf::read(path)
}

impl Plan {
    /// The plan of one model.
    fn one(&self, name: &str, ceilings: &[Ceilings]) -> Result<String> {
        let Some(gpus) = &self.gpus else { bad_input!("--gpus is missing: such as --gpus 8x80GiB") };
        let (ranks, device) = parse_gpus(gpus)?;
        let (config, rope) = model(name)?;
        let (toggles, auto) = self.toggles.toggles(&config, &rope, ranks, AUTO)?;
        let pieces = toggles.validate(&config)?;
        let (host, host_is_here) = host_room(&self.host, auto)?;
        let room = Room { device: Some(device), host };
        let setting = Setting { profile: Profile::GPU, model: &config, toggles, auto, room };
        let length = match (&self.length, self.longest) {
            (Some(length), _) => parse_tokens(length)?,
            (None, true) => {
                let grid = 1024_u64.next_multiple_of(pieces);
                match setting.longest(grid, LONGEST - 1)? {
                    Some(length) => length,
                    // The shortest shows what is in the way.
                    None => grid,
                }
            }
            (None, false) => bad_input!("give --length, such as --length 1M, or --longest"),
        };
        if length >= LONGEST {
            bad_input!("--length: {length} tokens: from 1 to {}", LONGEST - 1);
        }
        let plan = setting.plan(length)?;
        let changes = match self.compare || !plan.over().none() {
            true => compare::changes(&setting, &plan)?,
            false => Vec::new(),
        };
        let answer = Answer {
            model: &config,
            auto,
            plan: &plan,
            ceilings,
            changes: &changes,
            compare: self.compare,
            host_is_here,
        };
        Ok(if self.json { serde_json::to_string_pretty(&json(&answer))? } else { text(&answer) })
    }

    /// The plans of an experiment's rungs.
    fn all(&self, name: &str, ceilings: &[Ceilings]) -> Result<String> {
        let e = Experiment::load(name)?;
        let length = self.length.as_deref().map(parse_tokens).transpose()?;
        let mut rungs = Vec::new();
        for rung in &e.rungs {
            let (host, _) = host_room(&self.host, rung.auto)?;
            let room = Room { device: e.budget, host };
            let (toggles, auto, model) = (rung.toggles.clone(), rung.auto, &e.model);
            let setting = Setting { profile: e.device.profile(), model, toggles, auto, room };
            let most = rung.stop_at.unwrap_or(LONGEST - 1);
            let (length, ends_at) = match (length, e.budget) {
                (Some(length), _) if length >= LONGEST => bad_input!("--length: from 1 to {} tokens", LONGEST - 1),
                (Some(length), _) => (length, "--length"),
                (None, None) => (most.min(LONGEST / 2), "stop_at"),
                (None, Some(_)) => match setting.longest(rung.grid, most)? {
                    Some(length) if Some(length) == rung.stop_at => (length, "stop_at"),
                    Some(length) => (length, "memory"),
                    None => (rung.grid, "nothing fits"),
                },
            };
            rungs.push(Rung { name: rung.name.clone(), ends_at, plan: setting.plan(length)? });
        }
        Ok(match self.json {
            true => serde_json::to_string_pretty(&rungs_json(&e, &rungs, ceilings))?,
            false => rungs_text(&e, &rungs, ceilings),
        })
    }
}

/// Runs the command.
pub fn plan(command: &Plan) -> Result<u8> {
    let ceilings = match &command.ceilings {
        Some(path) => Ceilings::read(path)?,
        None => Ceilings::built_in()?,
    };
    let out = match (&command.model, &command.experiment) {
        // (Not clap's conflicts_with: it would let go of what `requires` says.)
        (Some(_), Some(experiment)) => {
            bad_input!("an experiment (`{experiment}`) has its own model: give it or --model, not both")
        }
        (Some(model), None) => command.one(model, &ceilings)?,
        (None, experiment) => command.all(experiment.as_deref().unwrap_or("small"), &ceilings)?,
    };
    super::say(&out)?;
    Ok(0)
}
