//! A global allocator that counts: the figure beside the ledger's that does not
//! come from the ledger. It sees every byte that the process takes from the heap.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The system's allocator, counted.
pub struct Counting;

static CURRENT: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

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
        // SAFETY: the caller's contract is `System`'s.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            grown(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
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
