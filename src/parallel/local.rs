//! Ranks of one process: threads that copy from each other's buffers.
//!
//! Each exchange has a number; a rank posts views under it, takes what the others
//! posted, and is done once its own have been taken. Waiting ends as soon as a rank
//! fails, so that nothing hangs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;

use super::comm::Comm;
use crate::device::{Device, Lane, Mat, SharedMat, Stopped};

/// What a rank posts for another one.
enum Post<S> {
    Views(Vec<S>),
    Values(Vec<f64>),
}

struct Desk<S> {
    /// (exchange, from, to) → what was posted.
    posts: HashMap<(u64, usize, usize), Post<S>>,
    /// Set once a rank has failed.
    stopped: bool,
}

/// The meeting place of a world's ranks.
pub struct World<S> {
    ranks: usize,
    desk: Mutex<Desk<S>>,
    changed: Condvar,
}

impl<S: SharedMat> World<S> {
    /// A world of `ranks` threads.
    pub fn new(ranks: usize) -> Arc<World<S>> {
        let desk = Desk { posts: HashMap::new(), stopped: false };
        Arc::new(World { ranks, desk: Mutex::new(desk), changed: Condvar::new() })
    }

    /// The end of one rank.
    pub fn comm(self: &Arc<Self>, rank: usize) -> LocalComm<S> {
        LocalComm { world: self.clone(), rank, exchanges: AtomicU64::new(0) }
    }

    /// Ends every wait of every rank with [`Stopped`].
    pub fn stop(&self) {
        self.desk().stopped = true;
        self.changed.notify_all();
    }

    fn desk(&self) -> MutexGuard<'_, Desk<S>> {
        // A panic elsewhere leaves whole posts behind; `stop` ends the waits.
        self.desk.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn post(&self, key: (u64, usize, usize), post: Post<S>) {
        self.desk().posts.insert(key, post);
        self.changed.notify_all();
    }

    /// Waits until `ready` gives something.
    fn wait<R>(&self, mut ready: impl FnMut(&mut Desk<S>) -> Option<R>) -> Result<R> {
        let mut desk = self.desk();
        loop {
            if desk.stopped {
                return Err(Stopped.into());
            }
            if let Some(result) = ready(&mut desk) {
                return Ok(result);
            }
            let waited = self.changed.wait_timeout(desk, Duration::from_millis(200));
            desk = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn views(&self, exchange: u64, from: usize, to: usize) -> Result<Vec<S>> {
        // The post stays until it has been copied: its sender waits for that.
        self.wait(|desk| match desk.posts.get(&(exchange, from, to)) {
            Some(Post::Views(views)) => Some(views.clone()),
            _ => None,
        })
    }

    fn taken(&self, exchange: u64, from: usize, to: usize) {
        self.desk().posts.remove(&(exchange, from, to));
        self.changed.notify_all();
    }

    fn all_taken(&self, exchange: u64, from: usize) -> Result<()> {
        let ranks = self.ranks;
        self.wait(|desk| {
            let open = (0..ranks).any(|to| desk.posts.contains_key(&(exchange, from, to)));
            (!open).then_some(())
        })
    }
}

/// One rank's end of a [`World`].
pub struct LocalComm<S> {
    world: Arc<World<S>>,
    rank: usize,
    exchanges: AtomicU64,
}

impl<S: SharedMat> LocalComm<S> {
    fn next(&self) -> u64 {
        self.exchanges.fetch_add(1, Relaxed)
    }

    /// On the comm lane: posts `out` (rank, views), then for each of `into` (rank,
    /// views, add) takes that rank's views in order, and waits until all are taken.
    fn exchange<D: Device<Shared = S>>(
        &self,
        device: &D,
        out: Vec<(usize, Vec<S>)>,
        into: Vec<(usize, Vec<S>, bool)>,
    ) -> Result<D::Event> {
        let (world, rank, exchange) = (self.world.clone(), self.rank, self.next());
        let before = device.record(Lane::Compute)?;
        device.wait(Lane::Comm, &before)?;
        let job = move || {
            for (to, views) in out {
                world.post((exchange, rank, to), Post::Views(views));
            }
            for (from, views, add) in into {
                for (mine, theirs) in views.iter().zip(world.views(exchange, from, rank)?) {
                    if add { mine.add_from(&theirs)? } else { mine.copy_from(&theirs)? }
                }
                world.taken(exchange, from, rank);
            }
            world.all_taken(exchange, rank)
        };
        device.enqueue(Lane::Comm, Box::new(job))?;
        device.record(Lane::Comm)
    }
}

impl<S: SharedMat, D: Device<Shared = S>> Comm<D> for LocalComm<S> {
    fn rank(&self) -> usize {
        self.rank
    }
    fn ranks(&self) -> usize {
        self.world.ranks
    }

    fn all_gather(&self, device: &D, part: Mat<D::Buffer>, whole: Mat<D::Buffer>) -> Result<D::Event> {
        let ranks = self.world.ranks;
        device.meter().sent(part.bytes() * (ranks as u64 - 1));
        let mine = device.share(part);
        let out = (0..ranks).map(|to| (to, vec![mine.clone()])).collect();
        let into = (0..ranks).map(|r| (r, vec![device.share(whole.rows(r..r + 1))], false)).collect();
        self.exchange(device, out, into)
    }

    fn reduce_scatter(&self, device: &D, whole: Mat<D::Buffer>, part: Mat<D::Buffer>) -> Result<D::Event> {
        let ranks = self.world.ranks;
        device.meter().sent(whole.bytes() / ranks as u64 * (ranks as u64 - 1));
        let mine = device.share(part);
        let out = (0..ranks).map(|to| (to, vec![device.share(whole.rows(to..to + 1))])).collect();
        let into = (0..ranks).map(|from| (from, vec![mine.clone()], true)).collect();
        self.exchange(device, out, into)
    }

    fn rotate(&self, device: &D, send: &[Mat<D::Buffer>], receive: &[Mat<D::Buffer>]) -> Result<D::Event> {
        let ranks = self.world.ranks;
        device.meter().sent(send.iter().map(Mat::bytes).sum());
        let (next, previous) = ((self.rank + 1) % ranks, (self.rank + ranks - 1) % ranks);
        let send = send.iter().map(|m| device.share(*m)).collect();
        let receive = receive.iter().map(|m| device.share(*m)).collect();
        self.exchange(device, vec![(next, send)], vec![(previous, receive, false)])
    }

    fn all_to_all(&self, device: &D, send: &[Mat<D::Buffer>], receive: &[Mat<D::Buffer>]) -> Result<D::Event> {
        let others = send.iter().enumerate().filter(|(to, _)| *to != self.rank);
        device.meter().sent(others.map(|(_, m)| m.bytes()).sum());
        let out = send.iter().enumerate().map(|(to, m)| (to, vec![device.share(*m)])).collect();
        let into = receive.iter().enumerate().map(|(from, m)| (from, vec![device.share(*m)], false)).collect();
        self.exchange(device, out, into)
    }

    fn sum(&self, values: &[f64]) -> Result<Vec<f64>> {
        let (world, exchange) = (&self.world, self.next());
        for to in 0..world.ranks {
            world.post((exchange, self.rank, to), Post::Values(values.to_vec()));
        }
        let mut total = vec![0.0; values.len()];
        for from in 0..world.ranks {
            let key = (exchange, from, self.rank);
            let theirs = world.wait(|desk| match desk.posts.get(&key) {
                Some(Post::Values(_)) => desk.posts.remove(&key),
                _ => None,
            })?;
            if let Post::Values(theirs) = theirs {
                total.iter_mut().zip(theirs).for_each(|(t, v)| *t += v);
            }
        }
        Ok(total)
    }
}
