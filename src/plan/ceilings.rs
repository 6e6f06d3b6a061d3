//! Measured ceilings of devices, and the floor that they set under the time of a step.

use std::path::Path;

use anyhow::Result;
use serde::Deserialize;

use super::Plan;
use crate::bad_input;
use crate::train::toggles::ContextParallel;
use crate::units::parse_tokens;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CeilingsFile {
    device: Vec<Ceilings>,
}

/// What a device was measured to do at most.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceilings {
    pub name: String,
    /// Where and how it was measured.
    pub source: String,
    /// Matrix products, FLOP/s.
    pub matmul: f64,
    /// Causal attention, by length.
    pub attention: Vec<AttentionCeiling>,
    /// Attention over a visiting block of a ring.
    pub block: BlockCeiling,
    /// Copies on the device, bytes/s read and written.
    pub memory: f64,
    /// To or from host memory, bytes/s one way.
    pub host: f64,
    /// To and from host memory at once, bytes/s.
    pub host_both: f64,
    /// To other devices, bytes/s each way.
    pub link: f64,
}

/// Attention at one length of the sequence.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionCeiling {
    /// As people write tokens: "32k".
    pub tokens: String,
    /// FLOP/s.
    pub forward: f64,
    /// FLOP/s.
    pub backward: f64,
}

/// Attention without a mask, FLOP/s.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockCeiling {
    pub forward: f64,
    pub backward: f64,
}

/// The least time that a step takes on a rank, seconds. Lanes run beside each other: the
/// longest of them is the floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    /// Matrix products.
    pub matmul: f64,
    /// Attention, forward and computed again.
    pub attention: f64,
    /// Attention's backward.
    pub attention_backward: f64,
    /// What row-wise operations move in the device's memory.
    pub memory: f64,
    /// The link to host memory.
    pub host: f64,
    /// The link to other devices.
    pub link: f64,
}

impl Floor {
    /// Seconds of the compute lane.
    pub fn compute(&self) -> f64 {
        self.matmul + self.attention + self.attention_backward + self.memory
    }

    /// Seconds of the step.
    pub fn step(&self) -> f64 {
        self.compute().max(self.host).max(self.link)
    }
}

impl Ceilings {
    /// The tables that this program has.
    pub fn built_in() -> Result<Vec<Ceilings>> {
        parse(include_str!("ceilings.toml"), "ceilings.toml")
    }

    /// Tables of a file of the same form.
    pub fn read(path: &Path) -> Result<Vec<Ceilings>> {
        match std::fs::read_to_string(path) {
            Ok(text) => parse(&text, &path.display().to_string()),
            Err(error) => bad_input!("{}: {error}; give a file of ceilings", path.display()),
        }
    }

    /// The rates measured nearest to a length, on the scale of its logarithm.
    fn attention_at(&self, tokens: u64) -> (f64, f64) {
        let distance = |a: &&AttentionCeiling| {
            let at = parse_tokens(&a.tokens).unwrap_or(1);
            (at as f64 / tokens.max(1) as f64).ln().abs()
        };
        let nearest = self.attention.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        nearest.map_or((f64::NAN, f64::NAN), |a| (a.forward, a.backward))
    }

    /// The floor under a step of a plan.
    pub fn floor(&self, plan: &Plan) -> Floor {
        let counts = &plan.rank.counts;
        let causal = self.attention_at(plan.length);
        // In a ring of P ranks each of P hops is as much work, and all but the first see whole blocks.
        let visiting = match plan.toggles.cp {
            ContextParallel::Ring => 1.0 - 1.0 / plan.toggles.ranks as f64,
            ContextParallel::None | ContextParallel::Ulysses => 0.0,
        };
        let seconds =
            |flops: u128, causal: f64, block: f64| flops as f64 * ((1.0 - visiting) / causal + visiting / block);
        let (into, out) = (counts.host_in_bytes as f64, counts.host_out_bytes as f64);
        Floor {
            matmul: counts.matmul_flops as f64 / self.matmul,
            attention: seconds(counts.attention_flops, causal.0, self.block.forward),
            attention_backward: seconds(counts.attention_backward_flops, causal.1, self.block.backward),
            memory: counts.memory_bytes as f64 / self.memory,
            host: (into.max(out) / self.host).max((into + out) / self.host_both),
            link: counts.communication_bytes as f64 / self.link,
        }
    }
}

fn parse(text: &str, name: &str) -> Result<Vec<Ceilings>> {
    let file: CeilingsFile = match toml::from_str(text) {
        Ok(file) => file,
        Err(error) => bad_input!("{name}: {}", error.message()),
    };
    if file.device.is_empty() {
        bad_input!("{name}: there is no [[device]]");
    }
    for c in &file.device {
        let rates = [
            ("matmul", c.matmul),
            ("memory", c.memory),
            ("host", c.host),
            ("host_both", c.host_both),
            ("link", c.link),
            ("block.forward", c.block.forward),
            ("block.backward", c.block.backward),
        ];
        let attention = c.attention.iter().flat_map(|a| [("forward", a.forward), ("backward", a.backward)]);
        for (key, rate) in rates.into_iter().chain(attention) {
            if !(rate.is_finite() && rate > 0.0) {
                bad_input!("{name}: device `{}`: {key} = {rate}: it must be a number above 0", c.name);
            }
        }
        if c.attention.is_empty() {
            bad_input!("{name}: device `{}`: attention needs at least one length", c.name);
        }
        for a in &c.attention {
            if let Err(error) = parse_tokens(&a.tokens) {
                bad_input!("{name}: device `{}`: attention: {error}", c.name);
            }
        }
    }
    Ok(file.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_files_are_refused() {
        let text = include_str!("ceilings.toml");
        assert_eq!(parse(text, "x").unwrap(), Ceilings::built_in().unwrap());
        for (from, to) in [
            ("matmul = 800e12", "matmul = 0.0"),
            ("matmul = 800e12", "matmul = nan"),
            ("matmul", "matmull"),
            ("\"32k\"", "\"thirty\""),
            ("host = 55e9\n", ""),
        ] {
            let error = parse(&text.replacen(from, to, 1).replacen(from, to, 1), "x.toml").expect_err(to);
            assert!(error.is::<crate::error::BadInput>() && error.to_string().starts_with("x.toml"), "{error}");
        }
        assert!(parse("device = []", "x").is_err());
    }

    #[test]
    fn attention_takes_the_nearest_length() {
        let c = &Ceilings::built_in().unwrap()[0];
        assert_eq!(c.attention_at(1).0, 672e12);
        assert_eq!(c.attention_at(60_000).0, 600e12);
        assert_eq!(c.attention_at(1 << 20).0, 556e12);
    }
}
