//! The folder of a ladder: who may write to it, and what it holds already.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::bad_input;
use crate::record::parquet::{FILES, write_whole};

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
        let found = match std::fs::read_dir(path) {
            Ok(entries) => entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned())).collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => bad_input!("{}: {error}; give another folder with --out", path.display()),
        };
        if found.iter().any(|name| name == FILES[2] || name == EXPERIMENT) {
            bad_input!(
                "{} holds a ladder's records already, which would be lost: give another --out, move it away, or go on \
                 with what it holds with --resume",
                path.display()
            );
        }
        if let Some(name) = found.first() {
            bad_input!(
                "{} holds {} other files ({name} …): give a new or an empty folder with --out",
                path.display(),
                found.len()
            );
        }
        Folder::open(path, std::fs::create_dir_all(path))
    }

    /// The first of `ablation-NAME`, `ablation-NAME-2` … that isn't there yet, in the current folder.
    pub fn numbered(name: &str) -> Result<Folder> {
        for number in 1.. {
            let path = numbered(name, number);
            match std::fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => return Folder::open(&path, made),
            }
        }
        unreachable!("a folder has fewer than 2^31 entries of one name")
    }

    /// A folder that an earlier run has begun.
    pub fn begun(path: &Path) -> Result<Folder> {
        if ![FILES[2], EXPERIMENT].iter().any(|f| path.join(f).is_file()) {
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
        match locked {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bad_input!(
                "{}: another run is writing to it: wait until it ends, or give another --out",
                path.display()
            ),
            // A file system without locks: nothing more can be known.
            Err(TryLockError::Error(_)) => {}
        }
        let probe = path.join(".ablation-probe");
        let written = std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe));
        if let Err(error) = written {
            bad_input!("{}: {error}; give a folder that can be written to with --out", path.display());
        }
        Ok(Folder { path: path.to_path_buf(), _lock: lock })
    }

    /// Puts the experiment's file into the folder.
    pub fn keep_experiment(&self, toml: &str) -> Result<()> {
        write_whole(&self.path.join(EXPERIMENT), |file| Ok(file.write_all(toml.as_bytes())?))
    }
}

fn numbered(name: &str, number: u32) -> PathBuf {
    PathBuf::from(if number == 1 { format!("ablation-{name}") } else { format!("ablation-{name}-{number}") })
}

/// The last of `ablation-NAME`, `ablation-NAME-2` … that is there.
pub fn last_numbered(name: &str) -> Result<PathBuf> {
    match (1..).map(|n| numbered(name, n)).take_while(|p| p.exists()).last() {
        Some(path) => Ok(path),
        None => {
            bad_input!("there is no {} here to go on with; give its folder with --out", numbered(name, 1).display())
        }
    }
}
