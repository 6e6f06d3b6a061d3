//! What a loss or a gradient norm says of a run, in words: as Hugging Face's guide tells its
//! reader to look at them.

use crate::model::config::ModelConfig;
use crate::model::rope::Rope;
use crate::units::format_tokens;

/// A first loss above this share of ln(vocabulary), that of guessing, is not that of trained
/// weights, which have 2 to 5 nats on text. (The guide's wrong ropes begin at 10 to 10.6 of
/// 11.93, the right one at 4.3.)
const UNTRAINED: f64 = 0.75;
/// A gradient norm that has grown this far over the first step's ends the run.
pub const EXPLODED: f64 = 1e4;
/// A loss that grows by more than this from the first eighth to the last isn't the text's doing, nats.
const CLIMB: f64 = 0.5;

/// The factor that stretches `original` tokens to `length`.
pub fn covering_factor(length: u64, original: u64) -> u64 {
    length.div_ceil(original.max(1))
}

/// What is wrong with a rope at a length, and what would be right; none: nothing.
pub fn not_covered(rope: &Rope, config: &ModelConfig, length: u64) -> Option<String> {
    let own = config.max_position_embeddings;
    match rope {
        Rope::Yarn(yarn) if !rope.covers(length) => Some(format!(
            "YaRN's factor {} over {} tokens covers fewer than {}: the right factor is {}",
            yarn.factor,
            format_tokens(yarn.original),
            format_tokens(length),
            covering_factor(length, yarn.original)
        )),
        Rope::Default { .. } if length > own => Some(format!(
            "{} tokens are more than the model's {}, without scaling: give --yarn {}",
            format_tokens(length),
            format_tokens(own),
            covering_factor(length, own)
        )),
        _ => None,
    }
}

/// What the first step's loss says of weights, text and rope.
pub fn first_loss(loss: f64, config: &ModelConfig) -> Option<String> {
    let uniform = (config.vocab_size as f64).ln();
    (loss > uniform * UNTRAINED).then(|| {
        format!(
            "the first loss, {loss:.2}, is near ln(vocabulary) = {uniform:.2}, that of guessing, where trained weights have \
             2 to 5: the weights are untrained, the tokenizer is another model's, or positions are not scaled for this \
             length (YaRN)"
        )
    })
}

/// What the losses of the first and the last eighth of the positions say of the rope.
pub fn along(first: Option<f64>, last: Option<f64>, rope: &Rope, config: &ModelConfig, length: u64) -> Option<String> {
    let (first, last) = first.zip(last).filter(|(first, last)| *last > *first + CLIMB)?;
    let cause = not_covered(rope, config, length)
        .unwrap_or_else(|| "check the rope: YaRN's factor, its original length and theta".to_string());
    Some(format!("the loss climbs along the positions, from {first:.2} to {last:.2} (first and last eighth): {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::published;
    use crate::model::rope::Yarn;

    /// failures.md 24: the loss of unscaled positions is told with what is wrong.
    #[test]
    fn losses_are_judged() {
        let config = published::find("Qwen/Qwen3-8B").unwrap();
        let own = Rope::Default { theta: 1e6 };
        // The guide's: 10.6 where 4.4 is right.
        assert!(first_loss(10.0, &config).unwrap().contains("ln(vocabulary) = 11.93"));
        assert_eq!(first_loss(4.311, &config), None);
        let said = along(Some(2.9), Some(7.3), &own, &config, 163_840).unwrap();
        assert!(said.contains("from 2.90 to 7.30") && said.contains("--yarn 4"), "{said}");
        let short = Rope::Yarn(Yarn::new(1e6, 2.0, 40_960));
        assert!(along(Some(2.9), Some(7.3), &short, &config, 163_840).unwrap().contains("right factor is 4"));
        let right = Rope::Yarn(Yarn::new(1e6, 4.0, 40_960));
        assert!(along(Some(2.9), Some(7.3), &right, &config, 163_840).unwrap().contains("check the rope"));
        assert_eq!(along(Some(2.9), Some(2.8), &right, &config, 163_840), None);
        assert_eq!(along(None, Some(9.0), &right, &config, 163_840), None);
    }
}
