//! The folder of a ladder: who may write to it, and what it holds already.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::bad_input;
use crate::files::write_whole;
use crate::record::parquet::FILES;

/// The experiment that a folder is for, as a file.
pub const EXPERIMENT: &str = "experiment.toml";

/// A folder that this process alone writes to, until it is dropped or the process ends.
pub struct Folder {
    pub path: PathBuf,
    /// The folder itself, opened and locked: the lock goes with the process, however it ends.
    _lock: File,
}

impl Folder {
    /// A folder that is empty or not yet there.
    pub fn empty(path: &Path) -> Result<Folder> {
        // Before anything is made, and again once nobody else can write to it.
        is_empty(path)?;
        let folder = Folder::open(path, std::fs::create_dir_all(path))?;
        is_empty(path)?;
        Ok(folder)
    }

    /// The first of `ablation-NAME`, `ablation-NAME-2` … that isn't there yet, in the current folder.
    pub fn numbered(name: &str) -> Result<Folder> {
        for number in 1.. {
            let path = PathBuf::from(match number {
                1 => format!("ablation-{name}"),
                _ => format!("ablation-{name}-{number}"),
            });
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return Folder::open(&path, made),
            }
        }
        unreachable!("a folder has fewer than 2^31 entries of one name")
    }

    /// A folder that an earlier run has begun.
    pub fn begun(path: &Path) -> Result<Folder> {
        if !holds_ladder(path) {
            bad_input!(
                "{}: there is no ladder to go on with; leave --resume away to begin one, or give its folder with --out",
                path.display()
            );
        }
        Folder::open(path, Ok(()))
    }

    fn open(path: &Path, made: std::io::Result<()>) -> Result<Folder> {
        let lock = match made.and_then(|()| File::open(path)) {
            Ok(lock) => lock,
            Err(error) => bad_input!("{}: {error}; give a folder that can be written to with --out", path.display()),
        };
        // A run that was just killed holds its lock until the system has taken it down.
        let mut locked = lock.try_lock();
        for _ in 0..10 {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
            locked = lock.try_lock();
        }
        // On a file system without locks nothing more can be known.
        if let Err(TryLockError::WouldBlock) = locked {
            bad_input!("{}: another run is writing to it: wait until it ends, or give another --out", path.display());
        }
        Ok(Folder { path: path.to_path_buf(), _lock: lock })
    }

    /// Puts the experiment's file into the folder: the first thing that is written.
    pub fn keep_experiment(&self, toml: &str) -> Result<()> {
        match write_whole(&self.path.join(EXPERIMENT), |file| Ok(file.write_all(toml.as_bytes())?)) {
            Ok(()) => Ok(()),
            Err(error) => bad_input!("{error:#}; give a folder that can be written to with --out"),
        }
    }
}

/// Refuses a folder that holds anything but what a run leaves that was killed as it began.
fn is_empty(path: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => bad_input!("{}: {error}; give another folder with --out", path.display()),
    };
    let names = entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned()));
    let found: Vec<String> = names.filter(|name| *name != format!("{EXPERIMENT}.partial")).collect();
    if holds_ladder(path) {
        bad_input!(
            "{} holds a ladder's records already, which would be lost: give another --out, move it away, or go on with \
             what it holds with --resume",
            path.display()
        );
    }
    match found.first() {
        None => Ok(()),
        Some(name) => bad_input!(
            "{} is not empty ({name}{}): give a new or an empty folder with --out",
            path.display(),
            if found.len() > 1 { " …" } else { "" }
        ),
    }
}

fn holds_ladder(path: &Path) -> bool {
    [FILES[2], EXPERIMENT].iter().any(|file| path.join(file).is_file())
}

/// The folder of this experiment, or of any, that was written to last: of those in the
/// current folder that [`Folder::numbered`] makes and that hold a ladder.
pub fn last_numbered(name: Option<&str>) -> Result<PathBuf> {
    let is_of = |file: &str| match (file.strip_prefix("ablation-"), name) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(rest), Some(name)) => match rest.strip_prefix(name) {
            Some("") => true,
            Some(number) => number.strip_prefix('-').is_some_and(|n| n.parse::<u32>().is_ok()),
            None => false,
        },
    };
    let written = |path: &Path| {
        [FILES[2], EXPERIMENT].iter().filter_map(|f| path.join(f).metadata().and_then(|m| m.modified()).ok()).max()
    };
    let entries = std::fs::read_dir(".").into_iter().flatten().filter_map(|e| Some(e.ok()?.file_name()));
    let folders = entries.filter(|file| is_of(&file.to_string_lossy())).map(PathBuf::from);
    let last = folders.filter_map(|path| Some((written(&path)?, path))).max();
    match last {
        Some((_, path)) => Ok(path),
        None => bad_input!(
            "there is no folder ablation-{} with a ladder here to go on with; give its folder with --out",
            name.unwrap_or("…")
        ),
    }
}
