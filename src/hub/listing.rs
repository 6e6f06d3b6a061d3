//! Files of the hub at one commit, brought into the cache: resumed where they break off, and
//! checked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use hf_hub::Repo;
use hf_hub::api::sync::{Api, ApiError, ApiRepo};
use indicatif::ProgressBar;

use super::{Hub, Kind, refused};
use crate::hash::sha256_of_file;
use crate::progress;

/// A transfer that breaks off goes on where it stopped, this many times.
const ATTEMPTS: u32 = 5;

/// An id at one commit.
pub struct Listing<'a> {
    pub(super) hub: &'a Hub,
    pub(super) kind: Kind,
    pub(super) id: String,
    pub commit: String,
    /// Paths within the repository.
    pub files: Vec<String>,
    /// Its folder in the cache.
    pub snapshot: PathBuf,
    pub(super) api: &'a Api,
    pub(super) repo: ApiRepo,
}

/// A file's bar, by bytes.
struct Bar(ProgressBar);

impl hf_hub::api::Progress for Bar {
    fn init(&mut self, size: usize, filename: &str) {
        self.0.set_length(size as u64);
        self.0.set_position(0);
        self.0.reset_eta();
        self.0.set_message(filename.to_string());
    }
    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }
    fn finish(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Listing<'_> {
    /// Brings a file into the cache; whether it had to be loaded.
    pub fn load(&self, file: &str) -> Result<bool> {
        if self.snapshot.join(file).exists() {
            return Ok(false);
        }
        let what = format!("{file} of {} {}", self.kind.word(), self.id);
        let mut attempt = 1;
        loop {
            match self.load_once(file) {
                Ok(()) => return Ok(true),
                Err(error) if attempt < ATTEMPTS && passes(&error) => {
                    crate::notice(&format!("{what}: {error}; going on where it stopped"));
                    std::thread::sleep(Duration::from_millis(300 << attempt));
                    attempt += 1;
                }
                Err(error) => return Err(refused(&what, error)),
            }
        }
    }

    fn load_once(&self, file: &str) -> Result<(), ApiError> {
        let metadata = self.api.metadata(&self.repo.url(file))?;
        let repo = || self.hub.cache.repo(Repo::new(self.id.clone(), self.kind.repo_type()));
        let blob = repo().blob_path(metadata.etag());
        let part = blob.with_extension("part");
        // All of it was there when an earlier process ended: a range of nothing is refused.
        if !blob.exists() && part.metadata().is_ok_and(|m| m.len() == metadata.size() as u64) {
            std::fs::rename(&part, &blob)?;
        }
        if !blob.exists() {
            let bar = progress::bar(
                metadata.size() as u64,
                "{bar:30} {bytes}/{total_bytes}  {bytes_per_sec}, {eta} to go  {msg}",
            );
            self.repo.download_with_progress(file, Bar(bar))?;
        } else {
            link(&self.snapshot, file, metadata.etag())?;
        }
        // Large files are named by their SHA-256.
        let damaged = blob.metadata()?.len() != metadata.size() as u64
            || (metadata.etag().len() == 64 && sha256_of_file(&blob)? != metadata.etag());
        if damaged {
            std::fs::remove_file(self.snapshot.join(file)).ok();
            std::fs::remove_file(&blob)?;
            return Err(ApiError::InvalidResume);
        }
        Ok(())
    }

    /// Has the branch stand for this commit, for those who look into the cache later.
    pub fn finish(&self) -> Result<()> {
        let repo = Repo::new(self.id.clone(), self.kind.repo_type());
        let shown = || format!("{}: could not note the commit of {}", self.hub.cache.path().display(), self.id);
        self.hub.cache.repo(repo).create_ref(&self.commit).with_context(shown)
    }
}

/// Whether an error may be gone when it is tried again.
fn passes(error: &ApiError) -> bool {
    match error {
        ApiError::RequestError(inner) => !matches!(**inner, ureq::Error::StatusCode(400..=499)),
        ApiError::IoError(error) => error.kind() != std::io::ErrorKind::StorageFull,
        ApiError::InvalidResume => true,
        _ => false,
    }
}

/// Points a file of a snapshot to its blob, by a path that the whole cache can be moved with.
fn link(snapshot: &Path, file: &str, etag: &str) -> std::io::Result<()> {
    let pointer = snapshot.join(file);
    if let Some(folder) = pointer.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let up = "../".repeat(Path::new(file).components().count() + 1);
    std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), pointer)
}
