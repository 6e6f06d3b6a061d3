//! What a byte is for: every buffer is leased under one of these categories.

/// The purpose of a buffer. The order is that of figures and tables, bottom up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Category {
    /// What driver and libraries hold before the first buffer: context, workspaces.
    Fixed,
    /// A rank's own part of the weights.
    Weights,
    /// A rank's own part of the gradients.
    Gradients,
    /// AdamW's first and second moments of a rank's own part.
    Moments,
    /// Whole weights of a unit, gathered from all ranks.
    GatheredWeights,
    /// Gradients of one whole unit before they are reduced over the ranks.
    UnitGradients,
    /// Token ids, targets and per-token losses of a rank's part of the sequence.
    Tokens,
    /// Cosines and sines of the rotary embedding.
    Rope,
    /// Activation checkpoints: layer inputs that the forward pass keeps.
    LayerInputs,
    /// Attention outputs and log-sum-exp that the forward pass keeps.
    AttentionOutputs,
    /// The activations that a layer's forward or backward works on.
    Working,
    /// Logits and their gradients.
    Logits,
    /// Blocks on their way to or from another rank.
    Communication,
    /// Scratch of single operations.
    Scratch,
}

impl Category {
    /// Number of categories.
    pub const COUNT: usize = 14;
    /// All categories, in order.
    pub const ALL: [Category; Category::COUNT] = [
        Category::Fixed,
        Category::Weights,
        Category::Gradients,
        Category::Moments,
        Category::GatheredWeights,
        Category::UnitGradients,
        Category::Tokens,
        Category::Rope,
        Category::LayerInputs,
        Category::AttentionOutputs,
        Category::Working,
        Category::Logits,
        Category::Communication,
        Category::Scratch,
    ];

    /// The name in column names: lower case with underscores.
    pub fn key(self) -> &'static str {
        match self {
            Category::Fixed => "fixed",
            Category::Weights => "weights",
            Category::Gradients => "gradients",
            Category::Moments => "moments",
            Category::GatheredWeights => "gathered_weights",
            Category::UnitGradients => "unit_gradients",
            Category::Tokens => "tokens",
            Category::Rope => "rope",
            Category::LayerInputs => "layer_inputs",
            Category::AttentionOutputs => "attention_outputs",
            Category::Working => "working",
            Category::Logits => "logits",
            Category::Communication => "communication",
            Category::Scratch => "scratch",
        }
    }

    /// The name in tables and legends.
    pub fn label(self) -> &'static str {
        match self {
            Category::Fixed => "driver and libraries",
            Category::Weights => "weights",
            Category::Gradients => "gradients",
            Category::Moments => "moments",
            Category::GatheredWeights => "gathered weights",
            Category::UnitGradients => "unit gradients",
            Category::Tokens => "tokens",
            Category::Rope => "rope",
            Category::LayerInputs => "layer inputs",
            Category::AttentionOutputs => "attention outputs",
            Category::Working => "working activations",
            Category::Logits => "logits",
            Category::Communication => "communication",
            Category::Scratch => "scratch",
        }
    }
}

/// Bytes by category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes(pub [u64; Category::COUNT]);

impl Bytes {
    /// The sum over all categories, in bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The bytes of one category.
    pub fn of(&self, category: Category) -> u64 {
        self.0[category as usize]
    }
}
