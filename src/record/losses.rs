//! What a study leaves: the loss of each setting by position, a row a band.

use std::path::Path;

use anyhow::Result;
use polars::prelude::DataFrame;

use super::field::{Field, table};
use super::parquet::{read, write_table};
use crate::bad_input;

/// Name of the file.
pub const LOSSES: &str = "losses.parquet";

/// A band of positions under one setting. A row of `losses.parquet`.
#[derive(Debug, Clone, PartialEq)]
pub struct LossBand {
    /// Name and title of the study.
    pub study: String,
    pub title: String,
    /// Name of the setting, and its place in the study, from 0.
    pub setting: String,
    pub setting_number: u32,

    /// Name of the model.
    pub model: String,
    /// Parameters of the model.
    pub parameters: u64,
    pub vocabulary: u32,
    /// Tokens that the model was made for: its max_position_embeddings.
    pub own_tokens: u64,
    /// `default` or `yarn`.
    pub rope: String,
    pub yarn_factor: Option<f64>,
    pub yarn_original_tokens: Option<u64>,

    /// Text that the sequence is from.
    pub text: String,
    /// Characters that the ids stand for; none where ids were given.
    pub characters: Option<u64>,
    /// SHA-256 of the token ids, little-endian u32, in hex.
    pub tokens_sha256: String,
    /// Tokens of the sequence.
    pub length_tokens: u64,
    /// Entropy of the sequence's tokens by their frequency alone, nats.
    pub unigram_entropy: f64,
    /// Targets that count, in the sequence.
    pub valid_targets: u64,
    /// Mean loss of the sequence, and of its first and last eighth, nats; none without targets.
    pub mean_loss: f64,
    pub first_eighth_loss: Option<f64>,
    pub last_eighth_loss: Option<f64>,

    /// The band: its first position and the one after its last.
    pub start_token: u64,
    pub end_token: u64,
    /// Targets that count, in the band.
    pub targets: u64,
    /// Mean loss of the band, nats.
    pub band_loss: Option<f64>,

    /// Seconds that the setting took.
    pub seconds: f64,
    pub device: String,
    pub program_version: String,
    pub git_revision: String,
    /// SHA-256 of the program's file, in hex.
    pub program_sha256: Option<String>,
    pub store_path: Option<String>,
    pub host_name: String,
    pub cpu: String,
    pub cores: u32,
    /// Milliseconds since 1970-01-01 UTC.
    pub started_unix_ms: i64,
    /// The study's file, whole, with the command line's changes applied.
    pub study_toml: String,
}

table!(LossBand, columns, read_bands, {
    study => "study", title => "title", setting => "setting", setting_number => "setting_number",
    model => "model", parameters => "parameters", vocabulary => "vocabulary", own_tokens => "own_tokens",
    rope => "rope", yarn_factor => "yarn_factor", yarn_original_tokens => "yarn_original_tokens",
    text => "text", characters => "characters", tokens_sha256 => "tokens_sha256", length_tokens => "length_tokens",
    unigram_entropy => "unigram_entropy_nats", valid_targets => "valid_targets", mean_loss => "mean_loss_nats",
    first_eighth_loss => "first_eighth_loss_nats", last_eighth_loss => "last_eighth_loss_nats",
    start_token => "start_token", end_token => "end_token", targets => "targets", band_loss => "band_loss_nats",
    seconds => "seconds", device => "device", program_version => "program_version", git_revision => "git_revision",
    program_sha256 => "program_sha256", store_path => "store_path", host_name => "host_name", cpu => "cpu",
    cores => "cores", started_unix_ms => "started_unix_ms", study_toml => "study_toml",
});

/// Writes `losses.parquet`, whole.
pub fn write_losses(dir: &Path, bands: &[LossBand]) -> Result<()> {
    write_table(dir, LOSSES, columns(bands)?)
}

/// More rows than this has no study, and no longer text a column.
const MOST_BANDS: usize = 100_000;
const LONGEST_TEXT: usize = 1 << 20;

/// Reads `losses.parquet`.
///
/// # Errors
/// [`BadInput`](crate::error::BadInput) if it isn't there, isn't whole, or says what no study leaves.
pub fn read_losses(dir: &Path) -> Result<Vec<LossBand>> {
    let path = dir.join(LOSSES);
    let bands = read(&path, &[], read_bands)?;
    let long = |b: &LossBand| {
        [&b.study, &b.title, &b.setting, &b.model, &b.text, &b.study_toml].iter().any(|text| text.len() > LONGEST_TEXT)
    };
    let out_of_order = |b: &LossBand| b.start_token > b.end_token || b.end_token > b.length_tokens;
    if bands.len() > MOST_BANDS || bands.iter().any(|b| long(b) || out_of_order(b)) {
        bad_input!("{}: not a study's losses; run the study again", path.display());
    }
    Ok(bands)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A band of a setting.
    pub fn band(setting: u32, start: u64, end: u64, loss: f64) -> LossBand {
        LossBand {
            study: "yarn".into(),
            title: "YaRN".into(),
            setting: format!("setting {setting}"),
            setting_number: setting,
            model: "m".into(),
            parameters: 1,
            vocabulary: 100,
            own_tokens: 8,
            rope: if setting == 0 { "default" } else { "yarn" }.into(),
            yarn_factor: (setting > 0).then_some(2.0),
            yarn_original_tokens: (setting > 0).then_some(8),
            text: "emma".into(),
            characters: Some(99),
            tokens_sha256: "00".into(),
            length_tokens: 16,
            unigram_entropy: 4.0,
            valid_targets: 15,
            mean_loss: 3.0,
            first_eighth_loss: Some(3.0),
            last_eighth_loss: Some(loss),
            start_token: start,
            end_token: end,
            targets: end - start,
            band_loss: Some(loss),
            seconds: 1.0,
            device: "cpu".into(),
            program_version: "0".into(),
            git_revision: "r".into(),
            program_sha256: None,
            store_path: None,
            host_name: "h".into(),
            cpu: "c".into(),
            cores: 2,
            started_unix_ms: 5,
            study_toml: "name = \"yarn\"".into(),
        }
    }

    #[test]
    fn bands_come_back_and_nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let bands = vec![band(0, 0, 8, 3.0), band(0, 8, 16, 5.0), band(1, 0, 16, 3.1)];
        write_losses(dir.path(), &bands).unwrap();
        assert_eq!(read_losses(dir.path()).unwrap(), bands);
        write_losses(dir.path(), &[band(0, 9, 8, 3.0)]).unwrap();
        assert!(read_losses(dir.path()).unwrap_err().is::<crate::error::BadInput>());
        std::fs::write(dir.path().join(LOSSES), "no parquet").unwrap();
        assert!(read_losses(dir.path()).unwrap_err().is::<crate::error::BadInput>());
    }
}
