//! Rotary position embedding: frequencies, with or without YaRN.

use anyhow::Result;

use crate::bad_input;

/// How positions turn into phases.
#[derive(Debug, Clone, PartialEq)]
pub enum Rope {
    /// The model's own.
    Default { theta: f64 },
    /// YaRN (Peng et al., 2023), as transformers computes it: static at all lengths.
    Yarn(Yarn),
}

/// YaRN's parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    pub theta: f64,
    /// How many times the original length is to be covered. It always wins over
    /// what lengths would imply.
    pub factor: f64,
    /// Tokens of the length that the model was trained at.
    pub original: u64,
    /// Rotations over the original length above which a dimension keeps its frequency.
    pub beta_fast: f64,
    /// Rotations below which a dimension is interpolated in full.
    pub beta_slow: f64,
    /// Round the ramp's ends to whole dimensions.
    pub truncate: bool,
    /// Factor on cos and sin; none: 0.1·ln(factor) + 1.
    pub attention_factor: Option<f64>,
}

impl Yarn {
    /// The usual betas and attention factor.
    pub fn new(theta: f64, factor: f64, original: u64) -> Yarn {
        Yarn { theta, factor, original, beta_fast: 32.0, beta_slow: 1.0, truncate: true, attention_factor: None }
    }

    /// The dimension that turns `rotations` times over the original length.
    fn correction_dimension(&self, rotations: f64, head_dim: usize) -> f64 {
        let turns = self.original as f64 / (rotations * 2.0 * std::f64::consts::PI);
        head_dim as f64 * turns.ln() / (2.0 * self.theta.ln())
    }

    /// Share of interpolation in dimension j of head_dim / 2.
    fn ramp(&self, head_dim: usize) -> impl Fn(usize) -> f64 {
        let (mut low, mut high) =
            (self.correction_dimension(self.beta_fast, head_dim), self.correction_dimension(self.beta_slow, head_dim));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
        if low == high {
            high += 0.001; // no division by zero
        }
        move |j| ((j as f64 - low) / (high - low)).clamp(0.0, 1.0)
    }
}

impl Rope {
    /// Base of the frequencies.
    pub fn theta(&self) -> f64 {
        match self {
            Rope::Default { theta } => *theta,
            Rope::Yarn(yarn) => yarn.theta,
        }
    }

    /// Radians per position of each of head_dim / 2 dimensions.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f64> {
        let own = |j: usize| self.theta().powf(-(2.0 * j as f64) / head_dim as f64);
        match self {
            Rope::Default { .. } => (0..head_dim / 2).map(own).collect(),
            Rope::Yarn(yarn) => {
                let ramp = yarn.ramp(head_dim);
                let mixed = |j| own(j) * (1.0 - ramp(j)) + own(j) / yarn.factor * ramp(j);
                (0..head_dim / 2).map(mixed).collect()
            }
        }
    }

    /// Factor on both cos and sin.
    pub fn attention_scaling(&self) -> f64 {
        match self {
            Rope::Default { .. } => 1.0,
            Rope::Yarn(yarn) => match yarn.attention_factor {
                Some(given) => given,
                None if yarn.factor > 1.0 => 0.1 * yarn.factor.ln() + 1.0,
                None => 1.0,
            },
        }
    }

    /// Whether positions up to `length` are within what the factor was made for.
    pub fn covers(&self, length: u64) -> bool {
        match self {
            Rope::Default { .. } => true,
            Rope::Yarn(yarn) => yarn.factor * yarn.original as f64 >= length as f64,
        }
    }

    /// Says what is wrong with the parameters.
    pub fn validate(&self) -> Result<()> {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !(positive(self.theta()) && self.theta() > 1.0) {
            bad_input!("rope: theta must be above 1, not {}", self.theta());
        }
        let Rope::Yarn(yarn) = self else { return Ok(()) };
        if !(yarn.factor.is_finite() && yarn.factor >= 1.0) {
            bad_input!("rope: YaRN's factor must be 1 or more, not {}", yarn.factor);
        }
        if yarn.original == 0 {
            bad_input!("rope: YaRN's original length must be positive");
        }
        if !(positive(yarn.beta_fast) && positive(yarn.beta_slow) && yarn.beta_fast > yarn.beta_slow) {
            bad_input!("rope: YaRN's beta_fast ({}) must be above beta_slow ({})", yarn.beta_fast, yarn.beta_slow);
        }
        match yarn.attention_factor {
            Some(given) if !positive(given) => bad_input!("rope: attention_factor must be positive, not {given}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_covers_its_length_and_no_more() {
        let rope = Rope::Yarn(Yarn::new(1e6, 32.0, 32_768));
        assert!(rope.covers(1_048_576));
        assert!(!rope.covers(1_048_577));
    }
}
