//! The Hugging Face hub: models and datasets by id, kept in the cache that all of its
//! libraries share, through hf-hub.
//!
//! Honoured: `HF_HOME`, `HF_HUB_CACHE` (`HUGGINGFACE_HUB_CACHE`), `XDG_CACHE_HOME`,
//! `HF_TOKEN` (`HF_TOKEN_PATH`, else the cache's token file), `HF_ENDPOINT`,
//! `HF_HUB_OFFLINE`. What is in the cache is used as it is; only `fetch` asks for news.

mod listing;
mod needs;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use crate::bad_input;

/// The branch that an id stands for.
const BRANCH: &str = "main";

pub use listing::Listing;

/// What an id names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Model,
    Dataset,
}

impl Kind {
    fn repo_type(self) -> RepoType {
        match self {
            Kind::Model => RepoType::Model,
            Kind::Dataset => RepoType::Dataset,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Dataset => "dataset",
        }
    }
}

/// What was brought into the cache.
#[derive(Debug)]
pub struct Fetched {
    /// The folder that holds the files.
    pub snapshot: PathBuf,
    pub commit: String,
    /// Files that were asked for, and how many such there are.
    pub files: usize,
    pub of: usize,
    /// Of the files asked for, those that were not there before.
    pub loaded: usize,
    /// Of the files asked for.
    pub bytes: u64,
}

/// The hub and its cache on this machine.
pub struct Hub {
    cache: Cache,
    /// None: `HF_HUB_OFFLINE` is set.
    api: Option<Api>,
}

/// Whether a text could be an id, as opposed to a path: `owner/name`.
pub fn is_id(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let plain = |part: &&str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    parts.len() == 2 && parts.iter().all(plain)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// The cache's folder, by the variables that huggingface_hub reads, in its order.
fn cache() -> Cache {
    if let Some(folder) = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        return Cache::new(folder.into());
    }
    match (variable("HF_HOME"), variable("XDG_CACHE_HOME")) {
        (Some(home), _) => Cache::new(Path::new(&home).join("hub")),
        (None, Some(caches)) => Cache::new(Path::new(&caches).join("huggingface/hub")),
        (None, None) => Cache::default(),
    }
}

fn token(cache: &Cache) -> Option<String> {
    let of_file = |path: String| std::fs::read_to_string(path).ok();
    let given = variable("HF_TOKEN").or_else(|| variable("HF_TOKEN_PATH").and_then(of_file)).or_else(|| cache.token());
    given.map(|token| token.trim().to_string()).filter(|token| !token.is_empty())
}

/// Whether the hub may not be asked, as huggingface_hub reads the variable.
fn offline() -> bool {
    let is_set = |value: String| matches!(&value.to_uppercase()[..], "1" | "ON" | "YES" | "TRUE");
    variable("HF_HUB_OFFLINE").is_some_and(is_set)
}

/// What the hub said, in words, with what to do.
fn refused(what: &str, error: ApiError) -> anyhow::Error {
    let said = match &error {
        ApiError::RequestError(inner) => match **inner {
            ureq::Error::StatusCode(401 | 403) => "the hub has none that all may read: if there is one, accept its \
                                                   terms on its page and set HF_TOKEN"
                .to_string(),
            ureq::Error::StatusCode(404) => "the hub has no such thing".to_string(),
            _ => inner.to_string(),
        },
        ApiError::LockAcquisition(path) => format!("another process is loading it ({})", path.display()),
        other => other.to_string(),
    };
    anyhow!(crate::error::BadInput(format!("{what}: {said}")))
}

impl Hub {
    /// The hub as the environment says.
    pub fn from_env() -> Result<Hub> {
        let cache = cache();
        if offline() {
            return Ok(Hub { cache, api: None });
        }
        let token = token(&cache);
        // What breaks off is begun again here: hf-hub's own retries append to the wrong place.
        let builder = ApiBuilder::from_env().with_retries(0).with_progress(false);
        let builder = builder.with_cache_dir(cache.path().clone()).with_token(token);
        let api = builder.with_user_agent("ablation", env!("CARGO_PKG_VERSION")).build()?;
        Ok(Hub { cache, api: Some(api) })
    }

    /// Where the cache is.
    pub fn cache_dir(&self) -> &Path {
        self.cache.path()
    }

    /// The folder of the snapshot that the cache holds of an id, whole or not.
    pub fn cached(&self, kind: Kind, id: &str) -> Option<PathBuf> {
        let repo = Repo::new(id.to_string(), kind.repo_type());
        let folder = self.cache.path().join(repo.folder_name());
        let commit = std::fs::read_to_string(folder.join("refs").join(BRANCH)).ok()?;
        Some(folder.join("snapshots").join(commit.trim())).filter(|snapshot| snapshot.is_dir())
    }

    /// The folder of a model: as the cache has it, else loaded first.
    pub fn model(&self, id: &str) -> Result<PathBuf> {
        match self.cached(Kind::Model, id).filter(|snapshot| needs::is_whole(snapshot)) {
            Some(snapshot) => Ok(snapshot),
            None => Ok(self.fetch_model(id)?.snapshot),
        }
    }

    /// Brings the files of a model that training needs into the cache.
    pub fn fetch_model(&self, id: &str) -> Result<Fetched> {
        let listing = self.listing(Kind::Model, id)?;
        let files = needs::of_model(id, &listing.files)?;
        self.fetch(&listing, &files, files.len())
    }

    /// Brings the first `count` Parquet files of a dataset's split into the cache.
    pub fn fetch_dataset(&self, id: &str, split: &str, count: usize) -> Result<Fetched> {
        let listing = self.listing(Kind::Dataset, id)?;
        let files = needs::of_dataset(id, &listing.files, split)?;
        self.fetch(&listing, &files[..count.min(files.len())], files.len())
    }

    fn fetch(&self, listing: &Listing, files: &[String], of: usize) -> Result<Fetched> {
        let mut loaded = 0;
        for file in files {
            loaded += usize::from(listing.load(file)?);
        }
        listing.finish()?;
        let bytes = files.iter().filter_map(|file| Some(listing.snapshot.join(file).metadata().ok()?.len())).sum();
        let (commit, snapshot) = (listing.commit.clone(), listing.snapshot.clone());
        Ok(Fetched { snapshot, commit, files: files.len(), of, loaded, bytes })
    }

    /// The Parquet files of a dataset's split in order, each loaded when it is its turn; where
    /// the hub may not be asked, those that the cache has.
    pub fn dataset(&self, id: &str, split: &str) -> Result<Box<dyn Iterator<Item = Result<PathBuf>> + '_>> {
        if self.api.is_none()
            && let Some(snapshot) = self.cached(Kind::Dataset, id)
        {
            let files = needs::of_dataset(id, &needs::below(&snapshot), split)?;
            return Ok(Box::new(files.into_iter().map(move |file| Ok(snapshot.join(file)))));
        }
        let listing = self.listing(Kind::Dataset, id)?;
        let files = needs::of_dataset(id, &listing.files, split)?;
        Ok(Box::new(files.into_iter().map(move |file| {
            listing.load(&file)?;
            listing.finish()?;
            Ok(listing.snapshot.join(&file))
        })))
    }

    /// The commit that an id stands for now, and its files.
    ///
    /// # Errors
    /// [`BadInput`](crate::error::BadInput) if the hub may not be asked, can't be reached or
    /// has no such thing.
    pub fn listing(&self, kind: Kind, id: &str) -> Result<Listing<'_>> {
        let what = format!("{} {id}", kind.word());
        let Some(api) = &self.api else {
            bad_input!("{what}: not in the cache ({}), and HF_HUB_OFFLINE is set", self.cache.path().display())
        };
        let branch = Repo::new(id.to_string(), kind.repo_type());
        let info = api.repo(branch.clone()).info().map_err(|error| refused(&what, error))?;
        let at_commit = Repo::with_revision(id.to_string(), kind.repo_type(), info.sha.clone());
        let files = info.siblings.into_iter().map(|file| file.rfilename).collect();
        let snapshot = self.cache.repo(branch).pointer_path(&info.sha);
        Ok(Listing {
            hub: self,
            kind,
            id: id.to_string(),
            commit: info.sha,
            files,
            snapshot,
            api,
            repo: api.repo(at_commit),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_told_from_paths() {
        for id in ["Qwen/Qwen3-0.6B", "emozilla/pg19", "a/b"] {
            assert!(is_id(id), "{id}");
        }
        for path in ["gpt2", "./model", "../b", "models/a/b", "/abs", "a/", "a/.b", "a b/c", ""] {
            assert!(!is_id(path), "{path}");
        }
    }
}
