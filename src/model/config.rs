//! A Qwen3 model's sizes.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::bad_input;

/// Sizes of a dense Qwen3, under the names of its config.json.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    pub name: String,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    /// Not always hidden_size / num_attention_heads: 128 in Qwen3-4B, whose quotient is 80.
    pub head_dim: usize,
    pub rms_norm_eps: f64,
    pub rope_theta: f64,
    pub max_position_embeddings: u64,
    pub tie_word_embeddings: bool,
    /// Norms of queries and keys by head (Qwen3); without them it is a llama.
    #[serde(default = "yes")]
    pub qk_norm: bool,
}

fn yes() -> bool {
    true
}

/// No model has as many; a plan takes time and memory for each.
const MOST_LAYERS: usize = 4096;

impl ModelConfig {
    /// Says what is wrong with the sizes.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
        ];
        for (key, size) in sizes {
            if size == 0 || size > u32::MAX as usize / 2 {
                bad_input!("model.{key} = {size}: it must be positive and below 2^31");
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            bad_input!(
                "model.num_attention_heads = {} is no multiple of model.num_key_value_heads = {}",
                self.num_attention_heads,
                self.num_key_value_heads
            );
        }
        if self.head_dim % 2 == 1 {
            bad_input!("model.head_dim = {} must be even: rope turns halves of a head", self.head_dim);
        }
        if self.num_hidden_layers > MOST_LAYERS {
            bad_input!("model.num_hidden_layers = {}: at most {MOST_LAYERS}", self.num_hidden_layers);
        }
        for (key, value, least) in [("rms_norm_eps", self.rms_norm_eps, 0.0), ("rope_theta", self.rope_theta, 1.0)] {
            if !(value.is_finite() && value > least) {
                bad_input!("model.{key} = {value}: it must be a number above {least}");
            }
        }
        if self.max_position_embeddings == 0 {
            bad_input!("model.max_position_embeddings must be positive");
        }
        Ok(())
    }

    /// Weights of one layer's matrices.
    fn layer_matrices(&self) -> u64 {
        let (hidden, ffn, d) = (self.hidden_size as u64, self.intermediate_size as u64, self.head_dim as u64);
        let heads = 2 * self.num_attention_heads as u64 + 2 * self.num_key_value_heads as u64;
        heads * d * hidden + 3 * hidden * ffn
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        let (hidden, d) = (self.hidden_size as u64, self.head_dim as u64);
        let norms = 2 * hidden + if self.qk_norm { 2 * d } else { 0 };
        let embeddings = self.vocab_size as u64 * hidden * if self.tie_word_embeddings { 1 } else { 2 };
        embeddings + self.num_hidden_layers as u64 * (self.layer_matrices() + norms) + hidden
    }

    /// FLOPs of a training step on `tokens`, without anything computed again: three
    /// times the forward's 2 per token and weight and 2·tokens²·heads·head_dim per
    /// layer (causal attention: half of its square).
    pub fn model_flops(&self, tokens: u64) -> u128 {
        let (layers, tokens) = (self.num_hidden_layers as u128, u128::from(tokens));
        let head = self.vocab_size as u128 * self.hidden_size as u128;
        let weights = layers * u128::from(self.layer_matrices()) + head;
        let width = self.num_attention_heads as u128 * self.head_dim as u128;
        3 * (2 * tokens * weights + 2 * tokens * tokens * width * layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published counts: 4.022e9 and 8.191e9.
    #[test]
    fn parameters_of_published_models() {
        let mut config = ModelConfig {
            name: "Qwen3-4B".to_string(),
            vocab_size: 151_936,
            hidden_size: 2560,
            intermediate_size: 9728,
            num_hidden_layers: 36,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            max_position_embeddings: 40_960,
            tie_word_embeddings: true,
            qk_norm: true,
        };
        config.validate().unwrap();
        assert_eq!(config.parameters(), 4_022_468_096);
        config.hidden_size = 4096;
        config.intermediate_size = 12_288;
        config.tie_word_embeddings = false;
        assert_eq!(config.parameters(), 8_190_735_360);
        let total: usize =
            crate::model::layout::units(&config).iter().flat_map(|u| u.slots.iter().map(|s| s.rows * s.cols)).sum();
        assert_eq!(total as u64, config.parameters());
    }
}
