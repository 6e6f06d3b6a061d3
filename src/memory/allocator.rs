//! A global allocator that counts: the figure beside the ledger's that does not
//! come from the ledger. It sees every byte that the process takes from the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// The system's allocator, counted.
pub struct Counting;

static CURRENT: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// The largest single allocation that is granted, bytes.
static CEILING: AtomicU64 = AtomicU64::new(u64::MAX);
/// What is said when one goes beyond.
static BEYOND: AtomicPtr<String> = AtomicPtr::new(std::ptr::null_mut());

/// While it stands, a single allocation beyond a number of bytes ends the program with
/// status 2 and a message, in place of an abort that says nothing of its cause.
pub struct Ceiling(*mut String);

impl Ceiling {
    /// Sets the ceiling; the last one set counts.
    pub fn raise(bytes: u64, message: String) -> Ceiling {
        let message = Box::into_raw(Box::new(message));
        BEYOND.store(message, Release);
        CEILING.store(bytes, Release);
        Ceiling(message)
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        CEILING.store(u64::MAX, Release);
        if BEYOND.compare_exchange(self.0, std::ptr::null_mut(), Release, Relaxed).is_ok() {
            // SAFETY: made by `Box::into_raw` in `raise`, and no longer reachable by others.
            drop(unsafe { Box::from_raw(self.0) });
        }
    }
}

fn granted(bytes: usize) {
    if bytes as u64 <= CEILING.load(Relaxed) {
        return;
    }
    // SAFETY: the message lives as long as it can be loaded; standard error allocates nothing.
    if let Some(message) = unsafe { BEYOND.load(Acquire).as_ref() } {
        let _ = std::io::stderr().write_all(message.as_bytes());
        // SAFETY: ends the process at once, from whatever thread asked.
        unsafe { libc::_exit(2) };
    }
}

fn grown(bytes: usize) {
    let now = CURRENT.fetch_add(bytes as u64, Relaxed) + bytes as u64;
    PEAK.fetch_max(now, Relaxed);
}

fn shrunk(bytes: usize) {
    CURRENT.fetch_sub(bytes as u64, Relaxed);
}

// SAFETY: every call goes to `System` unchanged; the counters touch no memory of the caller's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        granted(layout.size());
        // SAFETY: the caller's contract is `System`'s.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            grown(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        granted(layout.size());
        // SAFETY: the caller's contract is `System`'s.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            grown(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is `System`'s.
        unsafe { System.dealloc(pointer, layout) };
        shrunk(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        granted(new_size);
        // SAFETY: the caller's contract is `System`'s.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            grown(new_size);
            shrunk(layout.size());
        }
        moved
    }
}

/// Bytes on the heap now.
pub fn current() -> u64 {
    CURRENT.load(Relaxed)
}

/// The most bytes on the heap since [`reset_peak`].
pub fn peak() -> u64 {
    PEAK.load(Relaxed)
}

/// Begins a new measurement and returns the level that it begins at, bytes.
pub fn reset_peak() -> u64 {
    let now = current();
    PEAK.store(now, Relaxed);
    now
}
