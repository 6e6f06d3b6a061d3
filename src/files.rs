//! Files that are whole or not there.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes bytes under a temporary name in the same folder and moves them into place.
pub fn write_whole(path: &Path, write: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".partial");
    let partial = path.with_file_name(name);
    let result: Result<()> = (|| {
        let mut file = File::create(&partial)?;
        write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)?;
        // The name, too, is on disk before the next file is written.
        #[cfg(unix)]
        File::open(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(())
    })();
    if result.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    result.with_context(|| format!("could not write {}", path.display()))
}
