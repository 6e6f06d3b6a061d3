//! The ledger: per rank, who holds how many bytes, where, and for what.
//!
//! Every buffer holds a [`Lease`]. A lease beyond the budget is refused, and that
//! refusal is the out-of-memory error that a user reads.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::category::{Bytes, Category};
use crate::units::format_bytes;

/// Where bytes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The device's own memory; the budget counts it.
    Device,
    /// Host memory that holds offloaded activations (pinned where a GPU copies from it).
    Host,
}

/// A part of the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    #[default]
    Load,
    Forward,
    Loss,
    Backward,
    Update,
}

impl Phase {
    /// The name in the `phase` columns.
    pub fn key(self) -> &'static str {
        match self {
            Phase::Load => "load",
            Phase::Forward => "forward",
            Phase::Loss => "loss",
            Phase::Backward => "backward",
            Phase::Update => "update",
        }
    }
}

/// Where in the run a rank is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// Step, from 0.
    pub step: u32,
    pub phase: Phase,
    /// Layer; none outside of the layers.
    pub layer: Option<u32>,
}

/// The highest moment between two marks.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    pub mark: Mark,
    /// Seconds since the ledger was opened, at the segment's start.
    pub seconds: f64,
    pub device: Bytes,
    pub host: Bytes,
}

/// The highest moment of a whole run at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peak {
    /// Bytes at that moment, by category.
    pub bytes: Bytes,
    pub mark: Mark,
}

/// All ranks of a process together, device and host.
#[derive(Debug, Default)]
pub struct ProcessTotal {
    current: AtomicU64,
    peak: AtomicU64,
}

impl ProcessTotal {
    /// The most bytes that all ranks held at one time.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// Bytes that all ranks hold now.
    pub fn current(&self) -> u64 {
        self.current.load(Relaxed)
    }
}

#[derive(Debug)]
struct Books {
    current: [Bytes; 2],
    peak: [Peak; 2],
    mark: Mark,
    segment: Segment,
    timeline: Vec<Segment>,
}

#[derive(Debug)]
struct Inner {
    budget: Option<u64>,
    opened: Instant,
    process: Arc<ProcessTotal>,
    books: Mutex<Books>,
}

/// One rank's ledger. Clones are handles to the same books.
#[derive(Debug, Clone)]
pub struct Ledger(Arc<Inner>);

impl Ledger {
    /// Opens the books of one rank. `budget`: bytes it may hold on its device.
    pub fn new(budget: Option<u64>, process: Arc<ProcessTotal>) -> Ledger {
        let mark = Mark { step: 0, phase: Phase::Load, layer: None };
        let peak = Peak { bytes: Bytes::default(), mark };
        Ledger(Arc::new(Inner {
            budget,
            opened: Instant::now(),
            process,
            books: Mutex::new(Books {
                current: [Bytes::default(); 2],
                peak: [peak; 2],
                mark,
                segment: Segment { mark, seconds: 0.0, device: Bytes::default(), host: Bytes::default() },
                timeline: Vec::new(),
            }),
        }))
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // A panic elsewhere leaves plain counters behind: they stay readable.
        self.0.books.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes `bytes` at `place`, or says why not.
    pub fn lease(&self, place: Place, category: Category, bytes: u64) -> Result<Lease, Box<OutOfMemory>> {
        let mut guard = self.books();
        let books = &mut *guard;
        let held = &mut books.current[place as usize];
        let total = held.total().saturating_add(bytes);
        if let (Place::Device, Some(budget)) = (place, self.0.budget)
            && total > budget
        {
            return Err(Box::new(OutOfMemory { asked: bytes, category, budget, held: *held, mark: books.mark }));
        }
        held.0[category as usize] += bytes;
        let held = *held;
        let highest = match place {
            Place::Device => &mut books.segment.device,
            Place::Host => &mut books.segment.host,
        };
        if total >= highest.total() {
            *highest = held;
        }
        if total > books.peak[place as usize].bytes.total() {
            books.peak[place as usize] = Peak { bytes: held, mark: books.mark };
        }
        let process = self.0.process.current.fetch_add(bytes, Relaxed) + bytes;
        self.0.process.peak.fetch_max(process, Relaxed);
        Ok(Lease { ledger: self.clone(), place, category, bytes })
    }

    /// Says where in the step the rank is now: closes a segment of the timeline and begins one.
    pub fn mark(&self, step: u32, phase: Phase, layer: Option<u32>) {
        let seconds = self.0.opened.elapsed().as_secs_f64();
        let mut books = self.books();
        books.mark = Mark { step, phase, layer };
        let next = Segment { mark: books.mark, seconds, device: books.current[0], host: books.current[1] };
        let closed = std::mem::replace(&mut books.segment, next);
        books.timeline.push(closed);
    }

    /// Bytes held now.
    pub fn held(&self, place: Place) -> Bytes {
        self.books().current[place as usize]
    }

    /// The highest moment so far.
    pub fn peak(&self, place: Place) -> Peak {
        self.books().peak[place as usize]
    }

    /// All segments so far, the open one included.
    pub fn timeline(&self) -> Vec<Segment> {
        let books = self.books();
        let mut timeline = books.timeline.clone();
        timeline.push(books.segment.clone());
        timeline
    }
}

/// Bytes that a buffer holds; given back on drop.
#[derive(Debug)]
pub struct Lease {
    ledger: Ledger,
    place: Place,
    category: Category,
    bytes: u64,
}

impl Lease {
    /// Enters the bytes under another category: a buffer has changed its purpose.
    pub fn recategorize(&mut self, category: Category) {
        let mut guard = self.ledger.books();
        let held = &mut guard.current[self.place as usize];
        held.0[self.category as usize] -= self.bytes;
        held.0[category as usize] += self.bytes;
        drop(guard);
        self.category = category;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.ledger.books().current[self.place as usize].0[self.category as usize] -= self.bytes;
        self.ledger.0.process.current.fetch_sub(self.bytes, Relaxed);
    }
}

/// A buffer that doesn't fit into the budget: who holds what, and which toggle would free it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub asked: u64,
    pub category: Category,
    /// Bytes that the rank may hold.
    pub budget: u64,
    /// Bytes held when asked, by category.
    pub held: Bytes,
    pub mark: Mark,
}

impl OutOfMemory {
    /// The toggle that frees the largest share, by who holds most once the buffer is counted.
    fn advice(&self) -> &'static str {
        let mut with = self.held;
        with.0[self.category as usize] += self.asked;
        let fixed = with.of(Category::Weights) + with.of(Category::Gradients) + with.of(Category::Moments);
        let movable = [
            Category::Logits,
            Category::LayerInputs,
            Category::AttentionOutputs,
            Category::Working,
            Category::GatheredWeights,
            Category::UnitGradients,
        ];
        let largest = movable.into_iter().max_by_key(|c| with.of(*c)).unwrap_or(Category::Working);
        if with.of(largest) < fixed / 8 {
            return "more ranks (ranks = 2, 4 …): weights, gradients and moments are sharded over them";
        }
        match largest {
            Category::Logits => "loss = \"chunked\": logits of a few rows at a time",
            Category::LayerInputs => "offload = \"host\": kept activations move to host memory",
            Category::AttentionOutputs => "keep = \"inputs\" or offload = \"host\"",
            _ => "cp = \"ring\" or \"ulysses\" with more ranks: each holds a part of the sequence",
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = &self.mark;
        write!(f, "out of memory: {} asked for {} ", format_bytes(self.asked), self.category.label())?;
        write!(f, "in {} of step {}", mark.phase.key(), mark.step + 1)?;
        if let Some(layer) = mark.layer {
            write!(f, ", layer {layer}")?;
        }
        writeln!(f, "; {} of {} in use:", format_bytes(self.held.total()), format_bytes(self.budget))?;
        let mut rows: Vec<Category> = Category::ALL.into_iter().filter(|c| self.held.of(*c) > 0).collect();
        rows.sort_by_key(|c| std::cmp::Reverse(self.held.of(*c)));
        for category in rows {
            writeln!(f, "  {:<20} {:>12}", category.label(), format_bytes(self.held.of(category)))?;
        }
        write!(f, "what would free it: {}", self.advice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(budget: u64) -> Ledger {
        Ledger::new(Some(budget), Arc::default())
    }

    #[test]
    fn a_lease_beyond_the_budget_is_refused_with_a_table() {
        let ledger = ledger(100);
        let _weights = ledger.lease(Place::Device, Category::Weights, 30).unwrap();
        let logits = ledger.lease(Place::Device, Category::Logits, 50).unwrap();
        let error = ledger.lease(Place::Device, Category::Logits, 30).unwrap_err();
        assert_eq!((error.asked, error.held.total()), (30, 80));
        assert!(error.to_string().contains("loss = \"chunked\""), "{error}");
        drop(logits);
        ledger.lease(Place::Device, Category::Logits, 70).unwrap();
        assert_eq!(ledger.peak(Place::Device).bytes.total(), 100);
    }

    #[test]
    fn host_memory_has_books_of_its_own_outside_the_budget() {
        let ledger = ledger(10);
        let _host = ledger.lease(Place::Host, Category::LayerInputs, 1000).unwrap();
        assert_eq!(ledger.held(Place::Device).total(), 0);
        assert_eq!(ledger.peak(Place::Host).bytes.of(Category::LayerInputs), 1000);
    }

    #[test]
    fn segments_hold_the_highest_moment_between_marks() {
        let ledger = ledger(100);
        ledger.mark(0, Phase::Forward, Some(0));
        drop(ledger.lease(Place::Device, Category::Working, 40).unwrap());
        ledger.mark(0, Phase::Forward, Some(1));
        let timeline = ledger.timeline();
        assert_eq!(timeline.len(), 3);
        assert_eq!(timeline[1].device.total(), 40);
        assert_eq!(timeline[2].device.total(), 0);
    }
}
