//! The step against candle's own Qwen3 and against candle's autograd, over random
//! models, rows and settings.

mod common;

use std::collections::HashMap;

use ablation::device::IGNORED;
use ablation::model::config::ModelConfig;
use ablation::model::rope::{Rope, Yarn};
use ablation::train::toggles::*;
use ablation::train::world::{Row, StepReport};
use ablation::verify::oracle::{counted, head_name, published, tensors, token_losses};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use common::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const CPU: Device = Device::Cpu;

/// What is taken for true of a step.
struct Expected {
    losses: Vec<f64>,
    gradients: Tensors,
}

/// A whole model in candle's differentiable operations, in f64.
fn differentiated(config: &ModelConfig, rope: &Rope, source: &Uniform, row: &Row) -> Result<Expected> {
    let weights = tensors(config, source, DType::F64).unwrap().into_iter();
    let vars: HashMap<String, Var> = weights.map(|(name, t)| (name, Var::from_tensor(&t).unwrap())).collect();
    let w = |name: &str| -> &Tensor { vars[name].as_tensor() };
    let (t, d, heads, kv) = (row.ids.len(), config.head_dim, config.num_attention_heads, config.num_key_value_heads);
    let norm = |x: &Tensor, weight: &Tensor| -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&(mean + config.rms_norm_eps)?.sqrt()?)?.broadcast_mul(weight)
    };
    let frequencies = rope.inverse_frequencies(d);
    let phases: Vec<f64> = (0..t).flat_map(|i| frequencies.iter().map(move |f| i as f64 * f)).collect();
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
        let head_norm = |x: Tensor, name: &str| if config.qk_norm { norm(&x, w(name)) } else { Ok(x) };
        let q = rotate(&head_norm(project("self_attn.q_proj", heads)?, "self_attn.q_norm")?)?;
        let k = rotate(&head_norm(project("self_attn.k_proj", kv)?, "self_attn.k_norm")?)?;
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
    let losses = token_losses(&norm(&x, w("model.norm.weight"))?, w(head_name(config)), row)?;
    let all = (losses.sum_all()? / counted(row).iter().sum::<f64>())?.backward()?;
    let gradient = |var: &Var| all.get(var).unwrap().to_dtype(DType::F32)?.flatten_all()?.to_vec1();
    let gradients = vars.iter().map(|(name, var)| (name.clone(), gradient(var).unwrap())).collect();
    Ok(Expected { losses: losses.to_vec1()?, gradients })
}

fn any_model() -> impl Strategy<Value = ModelConfig> {
    let heads = select(vec![(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (6, 1), (6, 2), (6, 3), (6, 6)]);
    let sizes = (5..100usize, 8..49usize, 4..60usize, 1..4usize, select(vec![4, 6, 8, 16, 32]));
    // An eps that shows, beside one that does not.
    let numbers = (select(vec![1e-6, 1e-2]), select(vec![1e2, 1e4, 1e6]));
    (heads, sizes, numbers, any::<bool>()).prop_map(|(heads, (vocabulary, hidden, ffn, layers, head_dim), n, tied)| {
        ModelConfig {
            name: "random".to_string(),
            vocab_size: vocabulary,
            hidden_size: hidden,
            intermediate_size: ffn,
            num_hidden_layers: layers,
            num_attention_heads: heads.0,
            num_key_value_heads: heads.1,
            head_dim,
            rms_norm_eps: n.0,
            rope_theta: n.1,
            max_position_embeddings: 256,
            tie_word_embeddings: tied,
            qk_norm: true,
        }
    })
}

fn any_weights() -> impl Strategy<Value = Uniform> {
    (any::<u64>(), select(vec![0.1, 0.2, 0.3])).prop_map(|(seed, scale)| Uniform { seed, scale })
}

/// A row that no tile divides, and its labels: its own ids, or other tokens of which
/// about a third is ignored; one at least counts.
fn any_row(vocabulary: usize, length: std::ops::Range<usize>) -> impl Strategy<Value = Row> {
    let token = 0..vocabulary as u32;
    let label = prop_oneof![2 => token.clone(), 1 => Just(IGNORED)];
    let length = length.prop_filter("a tile divides it", |n| [32, 37, 64].iter().all(|tile| n % tile != 0));
    let row = length.prop_flat_map(move |n| (vec(token.clone(), n), proptest::option::of(vec(label.clone(), n))));
    (row, any::<prop::sample::Index>()).prop_map(|((ids, mut labels), counts)| {
        if let Some(labels) = &mut labels {
            let target = 1 + counts.index(ids.len() - 1);
            labels[target] = ids[target];
        }
        Row { ids, labels }
    })
}

fn any_loss() -> impl Strategy<Value = Loss> {
    prop_oneof![Just(Loss::Full), (32..101usize).prop_map(|rows| Loss::Chunked { rows })]
}

/// Any setting that the model allows.
fn any_toggles(config: &ModelConfig) -> impl Strategy<Value = Toggles> + use<> {
    let (theta, layers) = (config.rope_theta, config.num_hidden_layers);
    let yarn = Yarn::new(theta, 4.0, 32);
    let rope =
        select(vec![Rope::Default { theta }, Rope::Yarn(yarn.clone()), Rope::Yarn(Yarn { factor: 2.5, ..yarn })]);
    let mut splits = vec![(ContextParallel::None, 1)];
    let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
    for ranks in [2, 3, 4] {
        splits.push((ContextParallel::Ring, ranks));
        if heads % ranks == 0 && (kv_heads % ranks == 0 || ranks % kv_heads == 0) {
            splits.push((ContextParallel::Ulysses, ranks));
        }
    }
    let kept = (select(vec![Keep::Inputs, Keep::Attention]), select(vec![Offload::None, Offload::Host]));
    (rope, any_loss(), kept, 1..layers + 1, select(vec![32, 37, 64]), select(splits)).prop_map(
        |(rope, loss, (keep, offload), every, tile, (cp, ranks))| Toggles {
            loss,
            keep,
            offload,
            every,
            tile,
            cp,
            ranks,
            ..toggles(rope)
        },
    )
}

/// Each token's loss and their mean.
fn same_losses(ours: &StepReport, theirs: &[f64], row: &Row) {
    let n = theirs.len();
    assert_eq!((ours.losses.len(), ours.losses[n]), (n + 1, 0.0));
    for (i, (ours, theirs)) in ours.losses.iter().zip(theirs).enumerate() {
        assert!((f64::from(*ours) - theirs).abs() <= 1e-4, "the loss of token {i} is {ours}, not {theirs}");
    }
    let valid = counted(row).iter().sum::<f64>();
    assert_eq!(ours.valid_targets, valid as u64);
    let mean = theirs.iter().sum::<f64>() / valid;
    assert!((ours.loss / mean - 1.0).abs() <= 1e-5, "the loss is {}, not {mean}", ours.loss);
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt()
}

/// Each tensor's gradient, and the norm of all.
fn same_gradients(ours: &Left, theirs: &Tensors, row: &Row) {
    assert_eq!(ours.gradients.len(), theirs.len());
    let whole = norm(theirs.values().flatten().copied());
    // Over very few tokens some gradients cancel, even to 0 (that of a softmax over one
    // key): what f32 leaves there is small beside all gradients.
    let rounding = if row.ids.len() < 16 { 5e-7 * whole.max(1.0) } else { 0.0 };
    for (name, theirs) in theirs {
        let ours = &ours.gradients[name];
        assert_eq!(ours.len(), theirs.len());
        let (off, size) = (norm(ours.iter().zip(theirs).map(|(a, b)| a - b)), norm(theirs.iter().copied()));
        assert!(off <= 1e-4 * size + rounding, "the gradient of {name}, of norm {size}, is off by {off}");
    }
    let reported = ours.outcome.steps[0].gradient_norm;
    assert!((reported - whole).abs() <= 1e-4 * whole + rounding, "the norm is {reported}, not {whole}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn candle_transformers_qwen3_gives_the_same_losses(
        (config, row) in any_model().prop_flat_map(|c| (any_row(c.vocab_size, 2..150), Just(c)).prop_map(|(r, c)| (c, r))),
        weights in any_weights(), tile in select(vec![32, 37, 64]), loss in any_loss(),
    ) {
        let expected: Vec<f64> = published(&config, &weights, &row).unwrap().into_iter().map(f64::from).collect();
        let toggles = Toggles { loss, tile, ..toggles(Rope::Default { theta: config.rope_theta }) };
        let left = train(&config, &toggles, &weights, std::slice::from_ref(&row));
        same_losses(&left.outcome.steps[0], &expected, &row);
    }

    /// failures.md 11, 12: dQ, dK and dV of ring and ulysses too, against float64.
    #[test]
    fn candles_autograd_gives_the_same_gradients(
        (config, toggles, row) in (any_model(), any::<bool>()).prop_flat_map(|(c, qk_norm)| {
            let config = ModelConfig { qk_norm, ..c };
            (Just(config.clone()), any_toggles(&config), any_row(config.vocab_size, 2..150))
        }),
        weights in any_weights(),
    ) {
        let expected = differentiated(&config, &toggles.rope, &weights, &row).unwrap();
        let left = train(&config, &toggles, &weights, std::slice::from_ref(&row));
        same_losses(&left.outcome.steps[0], &expected.losses, &row);
        same_gradients(&left, &expected.gradients, &row);
    }
}
