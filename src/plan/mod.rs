//! The plan: dry runs of the very step, what they take, whether it fits, and the search for
//! the longest length that does.

pub mod auto;
pub mod ceilings;
pub mod compare;

use anyhow::{Result, anyhow};

use crate::device::dry::Profile;
use crate::memory::ledger::OutOfMemory;
use crate::model::config::ModelConfig;
use crate::train::toggles::{Auto, Toggles};
use crate::train::world::{RankReport, plan_for};
use crate::units::format_bytes;

/// GPUs of a node, where a plan has more: what a node's host memory is shared by.
pub const NODE_RANKS: usize = 8;

/// What a run may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Bytes that each rank may hold on its device; none: no limit.
    pub device: Option<u64>,
    /// Bytes of a node's host memory that may hold kept activations; none: no limit.
    pub host: Option<u64>,
}

/// A run that is planned, but for its length.
#[derive(Debug, Clone)]
pub struct Setting<'a> {
    pub profile: Profile,
    pub model: &'a ModelConfig,
    pub toggles: Toggles,
    /// What of the toggles is chosen for the length.
    pub auto: Auto,
    pub room: Room,
}

/// What a run of one length takes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Tokens.
    pub length: u64,
    /// The toggles, those that were to be chosen included.
    pub toggles: Toggles,
    /// The rank that holds the most.
    pub rank: RankReport,
    /// Ranks of a node.
    pub node_ranks: usize,
    pub room: Room,
}

impl Setting<'_> {
    /// The plan of a length; what is left to the plan is chosen first.
    pub fn plan(&self, length: u64) -> Result<Plan> {
        let toggles = if self.auto.any() { auto::choose(self, length)? } else { self.toggles.clone() };
        self.with(toggles, length)
    }

    /// The plan of a length under these toggles.
    pub fn with(&self, toggles: Toggles, length: u64) -> Result<Plan> {
        let (rank, result) = plan_for(self.profile, self.model, &toggles, None, length as usize);
        result?;
        let node_ranks = toggles.ranks.min(NODE_RANKS);
        Ok(Plan { length, toggles, rank, node_ranks, room: self.room })
    }

    /// Whether a length fits under these toggles.
    fn fits_with(&self, toggles: &Toggles, length: u64) -> Result<bool> {
        let (rank, result) = plan_for(self.profile, self.model, toggles, self.room.device, length as usize);
        let node = rank.host.bytes.total().saturating_mul(toggles.ranks.min(NODE_RANKS) as u64);
        Ok(within(result)? && self.room.host.is_none_or(|host| node <= host))
    }

    /// Whether the devices have room for a length under these toggles.
    fn fits_device(&self, toggles: &Toggles, length: u64) -> Result<bool> {
        within(plan_for(self.profile, self.model, toggles, self.room.device, length as usize).1)
    }

    fn fits(&self, length: u64) -> Result<bool> {
        if self.auto.any() {
            Ok(auto::smallest(self, length)?.is_some())
        } else {
            self.fits_with(&self.toggles, length)
        }
    }

    /// The longest multiple of `grid` that fits, up to `most` tokens; none if not even one
    /// grid point does. Memory never falls as a sequence grows.
    pub fn longest(&self, grid: u64, most: u64) -> Result<Option<u64>> {
        let most = most / grid;
        let fits = |points: u64| self.fits(points * grid);
        if most == 0 || !fits(1)? {
            return Ok(None);
        }
        // `low` fits; `high` doesn't, or is beyond the end.
        let (mut low, mut high) = (1, 2);
        while high <= most && fits(high)? {
            (low, high) = (high, high * 2);
        }
        high = high.min(most + 1);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if fits(middle)? {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok(Some(low * grid))
    }
}

/// Whether a dry run ended without a refusal.
fn within(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.is::<OutOfMemory>() => Ok(false),
        Err(error) => Err(error),
    }
}

/// By how much a run exceeds what it may have, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Over {
    /// On the device of a rank.
    pub device: u64,
    /// In host memory of a node.
    pub host: u64,
}

impl Over {
    /// Whether all is within its room.
    pub fn none(&self) -> bool {
        self.device == 0 && self.host == 0
    }
}

impl Plan {
    /// Peak of a rank on its device, bytes.
    pub fn device_bytes(&self) -> u64 {
        self.rank.device.bytes.total()
    }

    /// Peak of a rank in host memory, bytes.
    pub fn host_bytes(&self) -> u64 {
        self.rank.host.bytes.total()
    }

    /// Peak of a node in host memory, bytes.
    pub fn node_bytes(&self) -> u64 {
        self.host_bytes().saturating_mul(self.node_ranks as u64)
    }

    /// What exceeds the room.
    pub fn over(&self) -> Over {
        let over = |held: u64, room: Option<u64>| room.map_or(0, |room| held.saturating_sub(room));
        Over { device: over(self.device_bytes(), self.room.device), host: over(self.node_bytes(), self.room.host) }
    }

    /// Where on the step the peak stands: "backward of layer 35".
    pub fn peak_at(&self) -> String {
        let mark = &self.rank.device.mark;
        match mark.layer {
            Some(layer) => format!("{} of layer {layer}", mark.phase.key()),
            None => mark.phase.key().to_string(),
        }
    }

    /// FLOPs that all ranks run in a step.
    pub fn hardware_flops(&self) -> u128 {
        self.rank.counts.flops() * self.toggles.ranks as u128
    }

    /// Whether it fits, in a sentence.
    pub fn verdict(&self) -> String {
        let over = self.over();
        let mut parts = Vec::new();
        if over.device > 0 {
            parts.push(format!("{} too much on the device of a rank", format_bytes(over.device)));
        }
        if over.host > 0 {
            parts.push(format!("{} too much in host memory of a node", format_bytes(over.host)));
        }
        match (parts.is_empty(), self.room.device) {
            (true, Some(room)) => format!("fits, with {} of room", format_bytes(room - self.device_bytes())),
            (true, None) => "no budget to fit into".to_string(),
            (false, _) => format!("does not fit: {}", parts.join("; ")),
        }
    }
}

/// A number of FLOPs, as people write it: "1.53e18".
pub fn format_flops(flops: u128) -> String {
    format!("{:.2e}", flops as f64)
}

/// "8x80GiB": GPUs and the bytes of each.
pub fn parse_gpus(text: &str) -> Result<(usize, u64)> {
    let wrong = || anyhow!(crate::error::BadInput(format!("`{text}` is no number of GPUs: write 8x80GiB or 1x141GB")));
    let (count, bytes) = text.split_once('x').ok_or_else(wrong)?;
    let count = count.trim().parse::<usize>().ok().filter(|n| *n > 0).ok_or_else(wrong)?;
    Ok((count, crate::units::parse_bytes(bytes)?))
}
