//! Units: the parts in which weights are sharded, gathered and updated, and where
//! each named tensor stands in its unit.

use std::ops::Range;

use super::config::ModelConfig;

/// A part of the model whose weights travel together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// The embedding; with a tied head, the head's weights too.
    Embedding,
    /// A transformer layer.
    Layer(usize),
    /// The final norm and, where it isn't tied, the head.
    Head,
}

/// A tensor of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    InputNorm,
    Q,
    K,
    V,
    QNorm,
    KNorm,
    O,
    PostNorm,
    Gate,
    Up,
    Down,
    Embedding,
    FinalNorm,
    LmHead,
}

/// Where a tensor stands in its flat unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    pub part: Part,
    /// Its published name, `model.layers.0.self_attn.q_proj.weight` …
    pub name: String,
    /// [out features, in features]; a norm has one row.
    pub rows: usize,
    pub cols: usize,
    /// Element of the unit at which it begins.
    pub offset: usize,
}

impl Slot {
    /// As published: a norm has one dimension.
    pub fn shape(&self) -> Vec<usize> {
        if self.rows == 1 { vec![self.cols] } else { vec![self.rows, self.cols] }
    }
}

/// A unit's tensors, flat one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitLayout {
    pub unit: Unit,
    pub slots: Vec<Slot>,
    /// Elements that the tensors take.
    elements: usize,
}

/// Each tensor begins at a multiple of this many elements: 16 bytes in bf16.
const ALIGNMENT: usize = 8;

impl UnitLayout {
    fn new(unit: Unit, parts: Vec<(Part, String, usize, usize)>) -> UnitLayout {
        let mut elements: usize = 0;
        let mut slots = Vec::with_capacity(parts.len());
        for (part, name, rows, cols) in parts {
            let offset = elements;
            elements = (offset + rows * cols).next_multiple_of(ALIGNMENT);
            slots.push(Slot { part, name, rows, cols, offset });
        }
        UnitLayout { unit, slots, elements }
    }

    /// Elements of each of `ranks` equal shards.
    pub fn shard_elements(&self, ranks: usize) -> usize {
        self.elements.div_ceil(ranks).next_multiple_of(ALIGNMENT)
    }

    /// What a shard, elements `shard` of the unit, holds of each tensor: the slot, the
    /// tensor's first element there, and the elements of the shard.
    pub fn parts(&self, shard: Range<usize>) -> impl Iterator<Item = (&Slot, usize, Range<usize>)> {
        self.slots.iter().filter_map(move |slot| {
            let from = slot.offset.max(shard.start);
            let to = (slot.offset + slot.rows * slot.cols).min(shard.end);
            (from < to).then(|| (slot, from - slot.offset, from - shard.start..to - shard.start))
        })
    }

    /// The slot of a part, if this unit has one.
    pub fn slot(&self, part: Part) -> Option<&Slot> {
        self.slots.iter().find(|s| s.part == part)
    }
}

/// All units of a model, in the order of the forward pass.
pub fn units(config: &ModelConfig) -> Vec<UnitLayout> {
    let c = config;
    let (hidden, ffn, d) = (c.hidden_size, c.intermediate_size, c.head_dim);
    let (q, kv) = (c.num_attention_heads * d, c.num_key_value_heads * d);
    let embedding = vec![(Part::Embedding, "model.embed_tokens.weight".to_string(), c.vocab_size, hidden)];
    let mut units = vec![UnitLayout::new(Unit::Embedding, embedding)];
    for layer in 0..c.num_hidden_layers {
        let name = |tail: &str| format!("model.layers.{layer}.{tail}.weight");
        let mut parts = vec![
            (Part::InputNorm, name("input_layernorm"), 1, hidden),
            (Part::Q, name("self_attn.q_proj"), q, hidden),
            (Part::K, name("self_attn.k_proj"), kv, hidden),
            (Part::V, name("self_attn.v_proj"), kv, hidden),
            (Part::O, name("self_attn.o_proj"), hidden, q),
            (Part::PostNorm, name("post_attention_layernorm"), 1, hidden),
            (Part::Gate, name("mlp.gate_proj"), ffn, hidden),
            (Part::Up, name("mlp.up_proj"), ffn, hidden),
            (Part::Down, name("mlp.down_proj"), hidden, ffn),
        ];
        if c.qk_norm {
            parts.push((Part::QNorm, name("self_attn.q_norm"), 1, d));
            parts.push((Part::KNorm, name("self_attn.k_norm"), 1, d));
        }
        units.push(UnitLayout::new(Unit::Layer(layer), parts));
    }
    let mut head = vec![(Part::FinalNorm, "model.norm.weight".to_string(), 1, hidden)];
    if !c.tie_word_embeddings {
        head.push((Part::LmHead, "lm_head.weight".to_string(), c.vocab_size, hidden));
    }
    units.push(UnitLayout::new(Unit::Head, head));
    units
}
