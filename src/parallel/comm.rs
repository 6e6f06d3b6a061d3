//! Exchange between the ranks of a world.

use anyhow::Result;

use crate::device::dry::{Dry, DryBuffer};
use crate::device::{Device, Mat};

/// What ranks exchange. All ranks call the same operations in the same order.
///
/// Operations run on [`crate::device::Lane::Comm`], after what compute has done so
/// far; views given stay untouched until the returned event.
pub trait Comm<D: Device> {
    fn rank(&self) -> usize;
    fn ranks(&self) -> usize;

    /// Every rank's `part` [1, n] into `whole` [ranks, n].
    fn all_gather(&self, device: &D, part: Mat<D::Buffer>, whole: Mat<D::Buffer>) -> Result<D::Event>;
    /// part [1, n] += the sum over ranks, in their order, of row `rank` of `whole` [ranks, n].
    fn reduce_scatter(&self, device: &D, whole: Mat<D::Buffer>, part: Mat<D::Buffer>) -> Result<D::Event>;
    /// Sends each view to the next rank and receives the previous rank's.
    fn rotate(&self, device: &D, send: &[Mat<D::Buffer>], receive: &[Mat<D::Buffer>]) -> Result<D::Event>;
    /// Sends `send[p]` to rank p and receives `receive[p]` from it.
    fn all_to_all(&self, device: &D, send: &[Mat<D::Buffer>], receive: &[Mat<D::Buffer>]) -> Result<D::Event>;
    /// The sum over ranks, in their order, of each value; waits for it.
    fn sum(&self, values: &[f64]) -> Result<Vec<f64>>;
}

/// A world that is not there: the last rank of `ranks`, for the dry device. (In a
/// ring it holds the most: its queries see a part of every block.)
pub struct DryComm {
    ranks: usize,
}

impl DryComm {
    /// The last rank of a world of `ranks`.
    pub fn new(ranks: usize) -> DryComm {
        DryComm { ranks }
    }
}

type M<'a> = Mat<'a, DryBuffer>;

impl Comm<Dry> for DryComm {
    fn rank(&self) -> usize {
        self.ranks - 1
    }
    fn ranks(&self) -> usize {
        self.ranks
    }
    fn all_gather(&self, device: &Dry, part: M, _: M) -> Result<()> {
        device.meter().sent(part.bytes() * (self.ranks as u64 - 1));
        Ok(())
    }
    fn reduce_scatter(&self, device: &Dry, whole: M, _: M) -> Result<()> {
        device.meter().sent(whole.bytes() / self.ranks as u64 * (self.ranks as u64 - 1));
        Ok(())
    }
    fn rotate(&self, device: &Dry, send: &[M], _: &[M]) -> Result<()> {
        device.meter().sent(send.iter().map(Mat::bytes).sum());
        Ok(())
    }
    fn all_to_all(&self, device: &Dry, send: &[M], _: &[M]) -> Result<()> {
        device.meter().sent(send[1..].iter().map(Mat::bytes).sum());
        Ok(())
    }
    fn sum(&self, values: &[f64]) -> Result<Vec<f64>> {
        Ok(values.to_vec())
    }
}
