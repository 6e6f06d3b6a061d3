//! What several commands do alike.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::bad_input;
use crate::control::Control;
use crate::data::Tokenizer;
use crate::hub::{Hub, is_id};
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

/// How long cancelled work may take to end by itself.
const PATIENCE: Duration = Duration::from_millis(700);

/// Runs work in a thread of its own and waits for it; none: it was cancelled, and a long
/// operation goes on that the end of the process ends.
pub fn watched<R: Send + 'static>(work: impl FnOnce(&Control) -> Result<R> + Send + 'static) -> Result<Option<R>> {
    let control = Arc::new(Control::default());
    let held = control.clone();
    // Asked twice, it ends at once: what is on disk is whole.
    on_interrupt(move || held.cancelled.swap(true, Relaxed))?;
    let held = control.clone();
    let worker = std::thread::Builder::new().spawn(move || work(&held))?;
    let mut since = None;
    while !worker.is_finished() {
        if control.cancelled.load(Relaxed) && since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            control.leave();
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    worker.join().map_err(|_| anyhow!("the work's thread panicked"))?.map(Some)
}

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let shown = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if shown.chars().all(plain) { shown } else { format!("'{}'", shown.replace('\'', r"'\''")) }
}

/// A model by its folder, its GGUF file, or its id on the hub, which is loaded if need be.
pub fn open_model(name: &str) -> Result<Checkpoint> {
    let path = Path::new(name);
    if path.exists() || !is_id(name) {
        return Checkpoint::open(path);
    }
    let mut model = Checkpoint::open(&Hub::from_env()?.model(name)?)?;
    // Its folder is named by a commit.
    model.config.name = name.to_string();
    Ok(model)
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
