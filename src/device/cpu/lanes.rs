//! Lanes of the CPU device: a thread for each, started when it is first needed.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

use crate::device::{Job, Lane, Stopped};

/// A moment in a lane's queue; compute runs in the caller's thread, so its events are past.
#[derive(Clone, Default)]
pub struct CpuEvent(Option<Arc<Moment>>);

#[derive(Default)]
struct Moment {
    /// None: still to come. Some: the lane's first error so far, if any.
    reached: Mutex<Option<Option<Arc<anyhow::Error>>>>,
    changed: Condvar,
}

impl CpuEvent {
    /// Waits for the moment; returns the first error of the lane up to it.
    pub fn wait(&self) -> Result<()> {
        let Some(moment) = &self.0 else { return Ok(()) };
        let mut reached = moment.reached.lock().map_err(|_| anyhow!("a lane's event is poisoned"))?;
        loop {
            match &*reached {
                Some(None) => return Ok(()),
                Some(Some(error)) => return Err(relay(error)),
                None => reached = moment.changed.wait(reached).map_err(|_| anyhow!("a lane's event is poisoned"))?,
            }
        }
    }
}

/// An error that several events report: typed causes survive where it matters.
fn relay(error: &Arc<anyhow::Error>) -> anyhow::Error {
    match error.downcast_ref::<Stopped>() {
        Some(stopped) => anyhow::Error::new(*stopped),
        None => anyhow!("{error:#}"),
    }
}

enum Work {
    Job(Job),
    Record(Arc<Moment>),
}

struct Worker {
    queue: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(name: &str) -> Worker {
        let (queue, work) = channel::<Work>();
        let body = move || {
            let mut error: Option<Arc<anyhow::Error>> = None;
            for item in work {
                match item {
                    // After an error the lane only answers.
                    Work::Job(_) if error.is_some() => {}
                    Work::Job(job) => match std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)) {
                        Ok(Ok(())) => {}
                        Ok(Err(e)) => error = Some(Arc::new(e)),
                        Err(_) => error = Some(Arc::new(anyhow!("a lane's work panicked"))),
                    },
                    Work::Record(moment) => {
                        if let Ok(mut reached) = moment.reached.lock() {
                            *reached = Some(error.clone());
                        }
                        moment.changed.notify_all();
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("lane {name}")).spawn(body).ok();
        Worker { queue: Some(queue), thread }
    }

    fn put(&self, work: Work) -> Result<()> {
        let queue = self.queue.as_ref().ok_or_else(|| anyhow!("the lane is closed"))?;
        queue.send(work).map_err(|_| anyhow!("the lane's thread is gone"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The lanes of one rank.
#[derive(Default)]
pub struct Lanes {
    workers: [OnceLock<Worker>; 3],
}

impl Lanes {
    fn worker(&self, lane: Lane) -> Option<&Worker> {
        let (index, name) = match lane {
            Lane::Compute => return None,
            Lane::In => (0, "in"),
            Lane::Out => (1, "out"),
            Lane::Comm => (2, "comm"),
        };
        Some(self.workers[index].get_or_init(|| Worker::start(name)))
    }

    /// Puts work on a lane; on compute it runs at once.
    pub fn enqueue(&self, lane: Lane, job: Job) -> Result<()> {
        match self.worker(lane) {
            None => job(),
            Some(worker) => worker.put(Work::Job(job)),
        }
    }

    /// The moment at which the lane's work so far is done.
    pub fn record(&self, lane: Lane) -> Result<CpuEvent> {
        let Some(worker) = self.worker(lane) else { return Ok(CpuEvent::default()) };
        let moment = Arc::new(Moment::default());
        worker.put(Work::Record(moment.clone()))?;
        Ok(CpuEvent(Some(moment)))
    }

    /// Work that follows on `lane` starts after `event`.
    pub fn wait(&self, lane: Lane, event: &CpuEvent) -> Result<()> {
        match self.worker(lane) {
            None => event.wait(),
            Some(worker) => {
                let event = event.clone();
                worker.put(Work::Job(Box::new(move || event.wait())))
            }
        }
    }
}
