//! Reading files that may be damaged or mean ill through libraries that trust them.
//!
//! The reader of Parquet trusts the sizes that a file states. A flipped byte makes it panic, which
//! is caught, or ask for exbibytes, which would abort the process with no word about the
//! file: while a guard stands, such an allocation ends the program as bad input does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::memory::allocator::Ceiling;

/// Whether a panic is a damaged file's.
static READING: AtomicBool = AtomicBool::new(false);

/// No allocation is refused below this, bytes.
const ALWAYS_FREE: u64 = 1 << 30;

/// Columns of equal values shrink this far and further when they are written.
const EXPANSION: u64 = 64;

/// Makes panics of a guarded read silent; all others are printed as usual.
pub fn silence_guarded_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !READING.load(Relaxed) {
            usual(info);
        }
    }));
}

/// Runs a reader of the file at `path` of `bytes` bytes; none: it panicked. `advice`: what to
/// do about a damaged file.
pub fn guarded<R>(path: &Path, bytes: u64, advice: &str, read: impl FnOnce() -> R) -> Option<R> {
    let message = format!("error: {}: not a whole Parquet file; {advice}\n", path.display());
    let ceiling = Ceiling::raise(ALWAYS_FREE.max(bytes.saturating_mul(EXPANSION)), message);
    let result = caught(read);
    drop(ceiling);
    result
}

/// Runs a library's reader that panics where it should refuse; none: it did.
pub fn caught<R>(read: impl FnOnce() -> R) -> Option<R> {
    READING.store(true, Relaxed);
    let result = catch_unwind(AssertUnwindSafe(read));
    READING.store(false, Relaxed);
    result.ok()
}
