//! Running a study: setting after setting, each on disk, whole, as soon as it ends.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;

use super::{Setting, SettingRope, Source, Study};
use crate::bad_input;
use crate::control::Control;
use crate::data::{Corpus, Tokenizer, books, given};
use crate::hash::sha256_of_ids;
use crate::ladder::machine::Machine;
use crate::model::checkpoint::Checkpoint;
use crate::model::rope::{Rope, Yarn};
use crate::progress;
use crate::record::losses::{LossBand, read_losses, write_losses};
use crate::train::bands::{Band, bands, mean};
use crate::train::evaluate::{Evaluation, evaluate};
use crate::train::step::Cancelled;
use crate::train::toggles::{Loss, Toggles};
use crate::train::world::Row;
use crate::units::format_tokens;

/// Bands of a setting's figure.
const BANDS: usize = 32;

/// A study with its model and its text.
pub struct Ready {
    pub study: Study,
    pub model: Checkpoint,
    /// The study's file.
    pub toml: String,
    row: Row,
    /// What the sequence is from, in words.
    text: String,
    characters: Option<u64>,
    tokens_sha256: String,
    machine: Machine,
}

impl SettingRope {
    /// The rope that it means for a model.
    pub fn of(&self, model: &Checkpoint) -> Result<Rope> {
        let (factor, original) = match self {
            SettingRope::Own => return Ok(model.rope.clone()),
            SettingRope::Yarn { factor, original } => (*factor, *original),
        };
        let original = original.unwrap_or(model.config.max_position_embeddings);
        let rope = Rope::Yarn(Yarn::new(model.config.rope_theta, factor, original));
        rope.validate()?;
        Ok(rope)
    }
}

/// Entropy of the tokens by their frequency alone, nats: what a model without context gets at best.
fn unigram_entropy(ids: &[u32]) -> f64 {
    let mut counts = std::collections::BTreeMap::new();
    ids.iter().for_each(|id| *counts.entry(id).or_insert(0u64) += 1);
    let share = |count: &u64| *count as f64 / ids.len() as f64;
    -counts.values().map(|c| share(c) * share(c).ln()).sum::<f64>()
}

impl Ready {
    /// Reads a study's text with the model's tokenizer, which `tokenizer` makes where it is needed.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if the text is too short, a setting's rope is none,
    /// or what is wrong with a file.
    pub fn new(study: Study, model: Checkpoint, tokenizer: &dyn Fn(&Checkpoint) -> Result<Tokenizer>) -> Result<Ready> {
        let length = study.length.map(|l| l as usize);
        let of = |corpus: Corpus, offset: usize| {
            let from = if offset > 0 {
                format!(", from character {} on", format_tokens(offset as u64))
            } else {
                String::new()
            };
            (Row { ids: corpus.ids, labels: None }, format!("{}{from}", corpus.name), Some(corpus.characters))
        };
        let (mut row, text, characters) = match &study.source {
            Source::Tokens(path) => {
                let row = given::read(path, model.config.vocab_size)?.swap_remove(0);
                (row, path.display().to_string(), None)
            }
            Source::Path { path, offset } => of(Corpus::path(path, *offset, &tokenizer(&model)?, length)?, *offset),
            Source::Books { names, offset } => {
                let text: String = names.iter().map(|name| Ok(books::find(name)?.text)).collect::<Result<_>>()?;
                of(Corpus::part(names.join("+"), &text, *offset, &tokenizer(&model)?, length)?, *offset)
            }
        };
        let length = length.unwrap_or(row.ids.len());
        if row.ids.len() < length {
            bad_input!(
                "{} tokens are there, {length} were asked for: give a longer text or a shorter --length",
                row.ids.len()
            );
        }
        if length < 2 {
            bad_input!("a sequence of {length} tokens has no target: give at least 2");
        }
        row.ids.truncate(length);
        row.labels.iter_mut().for_each(|labels| labels.truncate(length));
        study.settings.iter().try_for_each(|s| s.rope.of(&model).map(|_| ()))?;
        let (toml, tokens_sha256) = (study.to_toml()?, sha256_of_ids(&row.ids));
        Ok(Ready { study, model, toml, row, text, characters, tokens_sha256, machine: Machine::here() })
    }

    /// Tokens of the sequence.
    pub fn length(&self) -> u64 {
        self.row.ids.len() as u64
    }

    /// The bands of an earlier run of this study in `dir`.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if what is there is of another study, text or program.
    pub fn done(&self, dir: &Path) -> Result<Vec<LossBand>> {
        if !dir.join(crate::record::losses::LOSSES).exists() {
            return Ok(Vec::new());
        }
        let bands = read_losses(dir)?;
        let ours = |b: &LossBand| {
            (&b.study_toml, &b.tokens_sha256) == (&self.toml, &self.tokens_sha256)
                && (&b.git_revision[..], &b.program_sha256) == (self.machine.git_revision, &self.machine.program_sha256)
        };
        if !bands.iter().all(ours) {
            bad_input!(
                "{}: its records are of another study, text or program: give another --out to begin anew",
                dir.display()
            );
        }
        Ok(bands)
    }

    /// Evaluates the settings that `bands` lacks; writes all into `dir` as they end. False: it
    /// was cancelled.
    pub fn run(&self, mut bands: Vec<LossBand>, dir: &Path, control: &Control) -> Result<bool> {
        let layers = self.model.config.num_hidden_layers as u64;
        let settings = &self.study.settings;
        let bar = progress::bar(
            layers * settings.len() as u64,
            "{bar:30} {percent:>3} %  {elapsed} gone, {eta} to go  {msg}",
        );
        for (number, setting) in settings.iter().enumerate() {
            if bands.iter().any(|b| b.setting_number as usize == number) {
                bar.inc(layers);
                bar.reset_eta();
                continue;
            }
            bar.set_message(setting.name.clone());
            if bar.is_hidden() {
                crate::notice(&format!("[{}/{}] {}", number + 1, settings.len(), setting.name));
            }
            let before = layers * number as u64;
            match self
                .one(number as u32, setting, &control.cancelled, &|layer| bar.set_position(before + layer as u64 + 1))
            {
                Ok(found) => bands.extend(found),
                Err(error) if error.is::<Cancelled>() => return Ok(false),
                Err(error) => return Err(error),
            }
            bands.sort_by_key(|b| (b.setting_number, b.start_token));
            if control.write(|| write_losses(dir, &bands))?.is_none() {
                return Ok(false);
            }
        }
        bar.finish_and_clear();
        Ok(true)
    }

    fn one(
        &self,
        number: u32,
        setting: &Setting,
        cancelled: &AtomicBool,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Vec<LossBand>> {
        let (config, row, machine) = (&self.model.config, &self.row, &self.machine);
        let rope = setting.rope.of(&self.model)?;
        let toggles = Toggles { loss: Loss::Chunked { rows: 256 }, tile: 512, ..Toggles::plain(rope.clone()) };
        let (start, started) = (Instant::now(), SystemTime::now());
        let evaluation = evaluate(config, &toggles, &self.model, row, cancelled, progress)?;
        let seconds = start.elapsed().as_secs_f64();
        let yarn = match &rope {
            Rope::Default { .. } => None,
            Rope::Yarn(yarn) => Some(yarn),
        };
        let (first, last) = eighths(&evaluation);
        let band = |band: Band| LossBand {
            study: self.study.name.clone(),
            title: self.study.title.clone(),
            setting: setting.name.clone(),
            setting_number: number,
            model: config.name.clone(),
            parameters: config.parameters(),
            vocabulary: config.vocab_size as u32,
            own_tokens: config.max_position_embeddings,
            rope: if yarn.is_some() { "yarn" } else { "default" }.to_string(),
            yarn_factor: yarn.map(|y| y.factor),
            yarn_original_tokens: yarn.map(|y| y.original),
            text: self.text.clone(),
            characters: self.characters,
            tokens_sha256: self.tokens_sha256.clone(),
            length_tokens: row.ids.len() as u64,
            unigram_entropy: unigram_entropy(&row.ids),
            valid_targets: evaluation.valid_targets,
            mean_loss: evaluation.loss,
            first_eighth_loss: first,
            last_eighth_loss: last,
            start_token: band.start as u64,
            end_token: band.end as u64,
            targets: band.targets as u64,
            band_loss: band.loss,
            seconds,
            device: "cpu".to_string(),
            program_version: machine.program_version.to_string(),
            git_revision: machine.git_revision.to_string(),
            program_sha256: machine.program_sha256.clone(),
            store_path: machine.store_path.clone(),
            host_name: machine.host_name.clone(),
            cpu: machine.cpu.clone(),
            cores: machine.cores,
            started_unix_ms: started.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64),
            study_toml: self.toml.clone(),
        };
        let counts = |i| evaluation.counts(i);
        Ok(bands(&evaluation.losses, BANDS, counts).into_iter().map(band).collect())
    }
}

/// Mean loss of the first and of the last eighth of the positions.
fn eighths(evaluation: &Evaluation) -> (Option<f64>, Option<f64>) {
    let (length, counts) = (evaluation.losses.len(), |i| evaluation.counts(i));
    let eighth = length.div_ceil(8);
    (mean(&evaluation.losses, 0..eighth, counts), mean(&evaluation.losses, length - eighth..length, counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_of_frequencies() {
        assert_eq!(unigram_entropy(&[7; 10]), 0.0);
        assert!((unigram_entropy(&[1, 2, 3, 4]) - 4f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn an_eighth_is_the_mean_over_its_targets() {
        let mut targets = vec![1; 16];
        targets[15] = crate::device::IGNORED;
        let mut losses = vec![2.0; 16];
        (losses[0], losses[15]) = (4.0, 0.0);
        let evaluation = Evaluation { loss: 2.0, losses, targets, valid_targets: 15 };
        assert_eq!(eighths(&evaluation), (Some(3.0), Some(2.0)));
    }
}
