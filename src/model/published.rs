//! The sizes of the published dense Qwen3 models, for plans without a file at hand.

use super::config::ModelConfig;

/// What differs between the models; all else they share.
struct Sizes {
    id: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    tied: bool,
    /// As the model's page counts them.
    #[cfg(test)]
    parameters: u64,
}

macro_rules! sizes {
    ($($id:literal: $hidden:literal, $intermediate:literal, $layers:literal, $heads:literal, $tied:literal, $n:literal;)*) => {
        [$(Sizes {
            id: $id, hidden: $hidden, intermediate: $intermediate, layers: $layers, heads: $heads, tied: $tied,
            #[cfg(test)]
            parameters: $n,
        }),*]
    };
}

/// Source: each model's config.json on huggingface.co/<id>. Hidden and intermediate size,
/// layers, query heads, tied embeddings; the number of parameters in its safetensors.
#[rustfmt::skip]
const MODELS: [Sizes; 6] = sizes! {
    "Qwen/Qwen3-0.6B": 1024, 3072, 28, 16, true, 596_049_920;
    "Qwen/Qwen3-1.7B": 2048, 6144, 28, 16, true, 1_720_574_976;
    "Qwen/Qwen3-4B": 2560, 9728, 36, 32, true, 4_022_468_096;
    "Qwen/Qwen3-8B": 4096, 12_288, 36, 32, false, 8_190_735_360;
    "Qwen/Qwen3-14B": 5120, 17_408, 40, 40, false, 14_768_307_200;
    "Qwen/Qwen3-32B": 5120, 25_600, 64, 64, false, 32_762_123_264;
};

/// Where a model's sizes are from: the page of a published one, else the file that it is named after.
pub fn source(model: &ModelConfig) -> String {
    match find(&model.name) {
        Some(published) if published == *model => {
            format!("https://huggingface.co/{}/blob/main/config.json", model.name)
        }
        _ => model.name.clone(),
    }
}

/// The names, from the smallest on.
pub fn ids() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|m| m.id)
}

/// A model by its name on Hugging Face, with or without `Qwen/`.
pub fn find(id: &str) -> Option<ModelConfig> {
    let m = MODELS.iter().find(|m| m.id == id || m.id.strip_prefix("Qwen/") == Some(id))?;
    Some(ModelConfig {
        name: m.id.to_string(),
        vocab_size: 151_936,
        hidden_size: m.hidden,
        intermediate_size: m.intermediate,
        num_hidden_layers: m.layers,
        num_attention_heads: m.heads,
        num_key_value_heads: 8,
        head_dim: 128,
        rms_norm_eps: 1e-6,
        rope_theta: 1e6,
        max_position_embeddings: 40_960,
        tie_word_embeddings: m.tied,
        qk_norm: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_give_the_published_numbers_of_parameters() {
        for m in &MODELS {
            let config = find(m.id).unwrap();
            config.validate().unwrap();
            assert_eq!(config.parameters(), m.parameters, "{}", m.id);
        }
        assert_eq!(find("Qwen3-8B"), find("Qwen/Qwen3-8B"));
        assert_eq!(find("Qwen/Qwen3-30B-A3B"), None);
        assert_eq!(ids().count(), 6);
    }
}
