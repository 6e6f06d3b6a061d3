//! Losses of candle-transformers' Qwen3 on the same weights.

use std::collections::HashMap;

use anyhow::Result;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen3;

use crate::device::IGNORED;
use crate::model::config::ModelConfig;
use crate::model::layout::{Slot, units};
use crate::parallel::shard::WeightSource;
use crate::train::world::Row;

/// The weights as candle tensors under their published names.
///
/// # Errors
/// If the source has none of a name.
pub fn tensors(config: &ModelConfig, source: &dyn WeightSource, dtype: DType) -> Result<HashMap<String, Tensor>> {
    let tensor = |slot: &Slot| -> Result<(String, Tensor)> {
        let mut values = vec![0.0f32; slot.rows * slot.cols];
        source.read(slot, 0, &mut values)?;
        let shape = slot.shape();
        Ok((slot.name.clone(), Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)?))
    };
    units(config).iter().flat_map(|unit| &unit.slots).map(tensor).collect()
}

/// The tensor that gives the logits.
pub fn head_name(config: &ModelConfig) -> &'static str {
    if config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" }
}

fn labels(row: &Row) -> &[u32] {
    row.labels.as_deref().unwrap_or(&row.ids)
}

/// 1 at each position but the last whose next label counts, else 0.
pub fn counted(row: &Row) -> Vec<f64> {
    labels(row)[1..].iter().map(|l| if *l == IGNORED { 0.0 } else { 1.0 }).collect()
}

/// Loss of each position but the last, nats, 0 where its target is ignored, from the
/// last hidden states [tokens, hidden] and the head [vocabulary, hidden].
pub fn token_losses(hidden: &Tensor, head: &Tensor, row: &Row) -> candle_core::Result<Tensor> {
    let n = row.ids.len() - 1;
    let log_p = candle_nn::ops::log_softmax(&hidden.matmul(&head.t()?)?, D::Minus1)?;
    let targets: Vec<u32> = labels(row)[1..].iter().map(|l| if *l == IGNORED { 0 } else { *l }).collect();
    let targets = Tensor::from_vec(targets, (n, 1), &Device::Cpu)?;
    let counted = Tensor::from_vec(counted(row), n, &Device::Cpu)?.to_dtype(log_p.dtype())?;
    log_p.narrow(0, 0, n)?.contiguous()?.gather(&targets, 1)?.squeeze(1)?.neg()? * counted
}

/// Losses of candle-transformers' Qwen3 by position, nats, as [`token_losses`] has them.
pub fn published(config: &ModelConfig, source: &dyn WeightSource, row: &Row) -> Result<Vec<f32>> {
    let theirs = qwen3::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        head_dim: config.head_dim,
        attention_bias: false,
        num_key_value_heads: config.num_key_value_heads,
        max_position_embeddings: config.max_position_embeddings as usize,
        sliding_window: None,
        max_window_layers: 0,
        tie_word_embeddings: config.tie_word_embeddings,
        rope_theta: config.rope_theta,
        rms_norm_eps: config.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: candle_nn::Activation::Silu,
    };
    let weights = tensors(config, source, DType::F32)?;
    let head = weights[head_name(config)].clone();
    let mut model = qwen3::Model::new(&theirs, VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu))?;
    let ids = Tensor::from_slice(&row.ids, (1, row.ids.len()), &Device::Cpu)?;
    let hidden = model.forward(&ids, 0)?.squeeze(0)?;
    Ok(token_losses(&hidden, &head, row)?.to_vec1()?)
}
