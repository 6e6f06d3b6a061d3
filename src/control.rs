//! Work in a thread of its own that can be ended, or left.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

/// What holds work that runs in another thread.
#[derive(Debug)]
pub struct Control {
    /// Set to end it at the next layer.
    pub cancelled: AtomicBool,
    /// Whether it may write records; held while it does.
    may_write: Mutex<bool>,
}

impl Default for Control {
    fn default() -> Control {
        Control { cancelled: AtomicBool::new(false), may_write: Mutex::new(true) }
    }
}

impl Control {
    /// From now on nothing is written, and nothing is being written.
    pub fn leave(&self) {
        *self.may_write.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// Writes, unless the work was left: then none.
    pub fn write<R>(&self, write: impl FnOnce() -> Result<R>) -> Result<Option<R>> {
        let may_write = self.may_write.lock().unwrap_or_else(PoisonError::into_inner);
        if *may_write { write().map(Some) } else { Ok(None) }
    }
}
