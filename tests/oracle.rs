//! The step against candle's own Qwen3 and against candle's autograd, over random shapes.

mod common;

use std::collections::HashMap;

use ablation::device::IGNORED;
use ablation::model::config::ModelConfig;
use ablation::model::layout::units;
use ablation::model::rope::{Rope, Yarn};
use ablation::parallel::shard::WeightSource;
use ablation::train::toggles::*;
use ablation::train::world::Row;
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::VarBuilder;
use candle_transformers::models::qwen3;
use common::*;
use proptest::prelude::*;

const CPU: Device = Device::Cpu;

/// The weights as candle tensors under their published names.
fn weights(config: &ModelConfig) -> HashMap<String, Tensor> {
    let mut all = HashMap::new();
    for slot in units(config).iter().flat_map(|u| &u.slots) {
        let mut values = vec![0.0f32; slot.rows * slot.cols];
        Hashed.read(slot, 0, &mut values).unwrap();
        let shape = if slot.rows == 1 { vec![slot.cols] } else { vec![slot.rows, slot.cols] };
        all.insert(slot.name.clone(), Tensor::from_vec(values, shape, &CPU).unwrap());
    }
    all
}

fn head(config: &ModelConfig, weights: &HashMap<String, Tensor>) -> Tensor {
    weights[if config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" }].clone()
}

/// Loss of each position but the last, by candle's log-softmax; f64 on the way out.
fn token_losses(hidden: &Tensor, head: &Tensor, ids: &[u32]) -> Result<Tensor> {
    let n = ids.len() - 1;
    let log_p = candle_nn::ops::log_softmax(&hidden.matmul(&head.t()?)?, D::Minus1)?;
    let targets = Tensor::from_slice(&ids[1..], (n, 1), &CPU)?;
    log_p.narrow(0, 0, n)?.contiguous()?.gather(&targets, 1)?.squeeze(1)?.neg()
}

/// A whole model in candle's differentiable operations, in f64. Returns the mean loss.
fn model(config: &ModelConfig, rope: &Rope, w: &HashMap<String, Var>, row: &Row) -> Result<Tensor> {
    let (t, d, heads, kv) = (row.ids.len(), config.head_dim, config.num_attention_heads, config.num_key_value_heads);
    let w = |name: &str| -> &Tensor { w[name].as_tensor() };
    let norm = |x: &Tensor, weight: &Tensor| -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&(mean + config.rms_norm_eps)?.sqrt()?)?.broadcast_mul(weight)
    };
    let phases: Vec<f64> =
        (0..t).flat_map(|position| rope.inverse_frequencies(d).into_iter().map(move |f| position as f64 * f)).collect();
    let phases = Tensor::from_vec(phases, (t, 1, d / 2), &CPU)?;
    let (cos, sin) = ((phases.cos()? * rope.attention_scaling())?, (phases.sin()? * rope.attention_scaling())?);
    let rotate = |x: &Tensor| -> Result<Tensor> {
        let (a, b) = (x.narrow(2, 0, d / 2)?, x.narrow(2, d / 2, d / 2)?);
        let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
        Tensor::cat(&[first, second], 2)
    };
    let mask: Vec<f64> =
        (0..t).flat_map(|i| (0..t).map(move |j| if j > i { f64::NEG_INFINITY } else { 0.0 })).collect();
    let mask = Tensor::from_vec(mask, (1, t, t), &CPU)?;
    let ids = Tensor::from_slice(&row.ids, t, &CPU)?;
    let mut x = w("model.embed_tokens.weight").index_select(&ids, 0)?;
    for layer in 0..config.num_hidden_layers {
        let w = |tail: &str| w(&format!("model.layers.{layer}.{tail}.weight"));
        let n = norm(&x, w("input_layernorm"))?;
        let project = |name: &str, heads: usize| n.matmul(&w(name).t()?)?.reshape((t, heads, d));
        let q = rotate(&norm(&project("self_attn.q_proj", heads)?, w("self_attn.q_norm"))?)?;
        let k = rotate(&norm(&project("self_attn.k_proj", kv)?, w("self_attn.k_norm"))?)?;
        let v = project("self_attn.v_proj", kv)?;
        // Query head h uses key head h / (heads / kv).
        let repeat = |x: Tensor| -> Result<Tensor> {
            let spread = x.unsqueeze(2)?.expand((t, kv, heads / kv, d))?.contiguous()?;
            spread.reshape((t, heads, d))?.transpose(0, 1)?.contiguous()
        };
        let (q, k, v) = (q.transpose(0, 1)?.contiguous()?, repeat(k)?, repeat(v)?);
        let scores = (q.matmul(&k.t()?.contiguous()?)? / (d as f64).sqrt())?.broadcast_add(&mask)?;
        let o = candle_nn::ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        let o = o.transpose(0, 1)?.contiguous()?.reshape((t, heads * d))?;
        x = (x + o.matmul(&w("self_attn.o_proj").t()?)?)?;
        let n = norm(&x, w("post_attention_layernorm"))?;
        let gate = n.matmul(&w("mlp.gate_proj").t()?)?;
        let silu = (&gate / (gate.neg()?.exp()? + 1.0)?)?;
        let act = (silu * n.matmul(&w("mlp.up_proj").t()?)?)?;
        x = (x + act.matmul(&w("mlp.down_proj").t()?)?)?;
    }
    let hidden = norm(&x, w("model.norm.weight"))?;
    let head = if config.tie_word_embeddings { w("model.embed_tokens.weight") } else { w("lm_head.weight") };
    let losses = token_losses(&hidden, head, &row.ids)?;
    let labels = row.labels.as_ref().unwrap_or(&row.ids);
    let valid: Vec<f64> = labels[1..].iter().map(|l| if *l == IGNORED { 0.0 } else { 1.0 }).collect();
    let count = valid.iter().sum::<f64>();
    (losses * Tensor::from_slice(&valid, valid.len(), &CPU)?)?.sum_all()? / count
}

fn any_model() -> impl Strategy<Value = ModelConfig> {
    let heads = prop_oneof![Just((1, 1)), Just((2, 1)), Just((4, 2)), Just((6, 2)), Just((4, 4))];
    let sizes = (4..20usize, 4..40usize, 1..3usize, prop_oneof![Just(4), Just(6), Just(16), Just(32)]);
    (heads, sizes, any::<bool>()).prop_map(|((heads, kv_heads), (hidden, ffn, layers, head_dim), tied)| ModelConfig {
        name: "random".to_string(),
        vocab_size: 61,
        hidden_size: 2 * hidden,
        intermediate_size: ffn,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        max_position_embeddings: 256,
        tie_word_embeddings: tied,
        qk_norm: true,
    })
}

/// Random tokens. Gradients over very few tokens can cancel to where f32 itself ends.
fn any_ids(length: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0..61u32, length)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn candle_transformers_qwen3_gives_the_same_losses(
        config in any_model(), ids in any_ids(2..150), tile in 32..100usize, rows in 32..100usize,
    ) {
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
        let weights = weights(&config);
        let head = head(&config, &weights);
        let mut model = qwen3::Model::new(&theirs, VarBuilder::from_tensors(weights, DType::F32, &CPU)).unwrap();
        let input = Tensor::from_slice(&ids, (1, ids.len()), &CPU).unwrap();
        let hidden = model.forward(&input, 0).unwrap().squeeze(0).unwrap();
        let expected = token_losses(&hidden, &head, &ids).unwrap().to_vec1::<f32>().unwrap();

        let toggles = Toggles { loss: Loss::Chunked { rows }, tile, ..toggles(Rope::Default { theta: 1e4 }) };
        let left = train(&config, &toggles, &Hashed, &[Row { ids, labels: None }]);
        let ours = &left.outcome.steps[0];
        for (a, b) in ours.losses.iter().zip(&expected) {
            prop_assert!((a - b).abs() <= 1e-4, "{a} is not {b}");
        }
        let mean = expected.iter().map(|l| f64::from(*l)).sum::<f64>() / expected.len() as f64;
        prop_assert!((ours.loss / mean - 1.0).abs() <= 1e-5, "{} is not {mean}", ours.loss);
    }

    #[test]
    fn candles_autograd_gives_the_same_gradients(
        config in any_model(), ids in any_ids(16..150), flags in any::<[bool; 5]>(), cp in 0..3usize, every in 1..3usize,
    ) {
        let rope = if flags[0] {
            Rope::Yarn(Yarn::new(config.rope_theta, 4.0, 32))
        } else {
            Rope::Default { theta: config.rope_theta }
        };
        let labels = flags[1].then(|| {
            let ignored = |(i, id): (usize, &u32)| if i > 1 && i % 3 == 0 { IGNORED } else { *id };
            ids.iter().enumerate().map(ignored).collect::<Vec<_>>()
        });
        let row = Row { ids, labels };
        let vars: HashMap<String, Var> = weights(&config)
            .into_iter()
            .map(|(name, t)| (name, Var::from_tensor(&t.to_dtype(DType::F64).unwrap()).unwrap()))
            .collect();
        let loss = model(&config, &rope, &vars, &row).unwrap();
        let gradients = loss.backward().unwrap();
        let expected: Tensors = vars
            .iter()
            .map(|(name, var)| {
                let g = gradients.get(var).unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap();
                (name.clone(), g.to_vec1().unwrap())
            })
            .collect();

        let cp = [ContextParallel::None, ContextParallel::Ring, ContextParallel::Ulysses][cp];
        let splits = config.num_attention_heads % 2 == 0 && cp != ContextParallel::None;
        let toggles = Toggles {
            rope: rope.clone(),
            loss: if flags[2] { Loss::Full } else { Loss::Chunked { rows: 33 } },
            keep: if flags[3] { Keep::Inputs } else { Keep::Attention },
            offload: if flags[4] { Offload::None } else { Offload::Host },
            every: every.min(config.num_hidden_layers),
            tile: 37,
            cp: if splits { cp } else { ContextParallel::None },
            ranks: if splits { 2 } else { 1 },
            ..toggles(rope)
        };
        let left = train(&config, &toggles, &Hashed, &[row]);
        let expected_loss = loss.to_scalar::<f64>().unwrap();
        prop_assert!((left.outcome.steps[0].loss / expected_loss - 1.0).abs() <= 1e-5);
        let (tensor, off) = farthest(&left.gradients, &expected);
        prop_assert!(off <= 1e-4, "gradient of {tensor} is off by {off}");
    }
}
