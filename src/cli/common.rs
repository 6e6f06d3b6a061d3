//! What several commands do alike.

use anyhow::Result;

use crate::bad_input;
use crate::data::Tokenizer;
use crate::model::checkpoint::Checkpoint;

/// Has Ctrl-C (SIGTERM and SIGHUP alike) call `ask`, which asks the work to end and says
/// whether that had been asked before: then the program ends at once.
pub fn on_interrupt(ask: impl Fn() -> bool + Send + 'static) -> Result<()> {
    Ok(ctrlc::set_handler(move || {
        if ask() {
            std::process::exit(130);
        }
    })?)
}

/// The tokenizer that belongs to a model.
pub fn tokenizer(model: &Checkpoint) -> Result<Tokenizer> {
    let tokenizer = Tokenizer::from_json(&model.tokenizer_json()?, &model.path.display().to_string())?;
    if tokenizer.vocab_size() > model.config.vocab_size {
        bad_input!(
            "the tokenizer has {} tokens and the model's vocabulary {}: they are of different models",
            tokenizer.vocab_size(),
            model.config.vocab_size
        );
    }
    Ok(tokenizer)
}
