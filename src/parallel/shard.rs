//! Weights, gradients and moments, sharded over all ranks (ZeRO-3 / FSDP): each
//! rank holds an equal part of every unit and gathers a whole unit when it needs it.

use anyhow::Result;

use super::comm::Comm;
use crate::device::{AdamW, AdamWState, Buffer, DType, Device, Lane, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::Place;
use crate::model::layout::{Part, Slot, UnitLayout};

/// Where a model's first weights come from.
pub trait WeightSource {
    /// Fills `out` with elements `first..` of the tensor of `slot`, row-major.
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()>;
}

/// One rank's part of a unit, flat.
struct Shard<D: Device> {
    layout: UnitLayout,
    weights: D::Buffer,
    gradients: D::Buffer,
    first_moment: D::Buffer,
    second_moment: D::Buffer,
}

/// The named tensors of a unit in one flat buffer: weights or gradients.
pub struct UnitView<'a, D: Device> {
    layout: &'a UnitLayout,
    buffer: &'a D::Buffer,
}

impl<'a, D: Device> UnitView<'a, D> {
    /// A tensor of the unit, if it has it.
    pub fn get(&self, part: Part) -> Option<Mat<'a, D::Buffer>> {
        let slot = self.layout.slot(part)?;
        Some(Mat::at(self.buffer, slot.offset, slot.rows, slot.cols))
    }

    /// A tensor that the unit has by construction.
    pub fn mat(&self, part: Part) -> Mat<'a, D::Buffer> {
        self.get(part).unwrap_or_else(|| panic!("{:?} has no {part:?}", self.layout.unit))
    }
}

/// A unit's whole weights: the rank's own where it is alone, else gathered.
pub struct Whole<D: Device> {
    unit: usize,
    gathered: Option<(D::Buffer, D::Event)>,
}

/// Where a unit's gradients accumulate (f32): in place where the rank is alone, else
/// in scratch until they are reduced.
pub struct UnitGradient<D: Device> {
    unit: usize,
    scratch: Option<D::Buffer>,
}

/// All parameters of one rank.
pub struct Parameters<D: Device> {
    shards: Vec<Shard<D>>,
    ranks: usize,
    rank: usize,
    /// Gradients on their way to their owners.
    reducing: Option<(UnitGradient<D>, D::Event)>,
}

impl<D: Device> Parameters<D> {
    /// Takes memory for a rank's part and fills it from `source`. `moments`: their type;
    /// none: the weights are for the forward pass alone, with neither moments nor gradients.
    pub fn load(
        device: &D,
        layouts: Vec<UnitLayout>,
        moments: Option<DType>,
        (rank, ranks): (usize, usize),
        source: &dyn WeightSource,
    ) -> Result<Parameters<D>> {
        let mut shards = Vec::with_capacity(layouts.len());
        for layout in layouts {
            let n = layout.shard_elements(ranks);
            let trained = if moments.is_some() { n } else { 0 };
            let dtype = device.compute_dtype();
            let take = |category, dtype, n| device.allocate(Place::Device, category, dtype, n);
            let shard = Shard {
                weights: take(Category::Weights, dtype, n)?,
                gradients: take(Category::Gradients, dtype, trained)?,
                first_moment: take(Category::Moments, moments.unwrap_or(dtype), trained)?,
                second_moment: take(Category::Moments, moments.unwrap_or(dtype), trained)?,
                layout,
            };
            // What `initialize` gives is zero until it is filled.
            device.initialize(&shard.first_moment, &mut |_| Ok(()))?;
            device.initialize(&shard.second_moment, &mut |_| Ok(()))?;
            device.initialize(&shard.weights, &mut |values| {
                let mut parts = shard.layout.parts(rank * n..(rank + 1) * n);
                parts.try_for_each(|(slot, first, here)| source.read(slot, first, &mut values[here]))
            })?;
            shards.push(shard);
        }
        Ok(Parameters { shards, ranks, rank, reducing: None })
    }

    /// Begins to gather a unit's whole weights.
    pub fn gather(&self, device: &D, comm: &impl Comm<D>, unit: usize) -> Result<Whole<D>> {
        if self.ranks == 1 {
            return Ok(Whole { unit, gathered: None });
        }
        let shard = &self.shards[unit];
        let n = shard.weights.elements();
        let category = Category::GatheredWeights;
        let whole = device.allocate(Place::Device, category, shard.weights.dtype(), n * self.ranks)?;
        let event = comm.all_gather(device, Mat::flat(&shard.weights), Mat::new(&whole, self.ranks, n))?;
        Ok(Whole { unit, gathered: Some((whole, event)) })
    }

    /// The weights, once they are there.
    pub fn weights<'a>(&'a self, device: &D, whole: &'a Whole<D>) -> Result<UnitView<'a, D>> {
        let shard = &self.shards[whole.unit];
        let buffer = match &whole.gathered {
            None => &shard.weights,
            Some((buffer, event)) => {
                device.wait(Lane::Compute, event)?;
                buffer
            }
        };
        Ok(UnitView { layout: &shard.layout, buffer })
    }

    /// Sets all gradients to zero.
    pub fn zero_gradients(&self, device: &D) -> Result<()> {
        self.shards.iter().try_for_each(|s| device.fill(Mat::flat(&s.gradients), 0.0))
    }

    /// Where a unit's gradients are to be added.
    pub fn begin_gradient(&self, device: &D, unit: usize) -> Result<UnitGradient<D>> {
        let gradients = &self.shards[unit].gradients;
        if self.ranks == 1 && gradients.dtype() == DType::F32 {
            return Ok(UnitGradient { unit, scratch: None });
        }
        let n = gradients.elements() * self.ranks;
        let scratch = device.allocate(Place::Device, Category::UnitGradients, DType::F32, n)?;
        device.fill(Mat::flat(&scratch), 0.0)?;
        Ok(UnitGradient { unit, scratch: Some(scratch) })
    }

    /// The gradients to add to.
    pub fn gradient<'a>(&'a self, gradient: &'a UnitGradient<D>) -> UnitView<'a, D> {
        let shard = &self.shards[gradient.unit];
        UnitView { layout: &shard.layout, buffer: gradient.scratch.as_ref().unwrap_or(&shard.gradients) }
    }

    /// Sums a unit's gradients over the ranks into their owners' parts, beside compute.
    pub fn reduce(&mut self, device: &D, comm: &impl Comm<D>, gradient: UnitGradient<D>) -> Result<()> {
        self.finish_reducing(device)?;
        let Some(scratch) = &gradient.scratch else { return Ok(()) };
        let part = &self.shards[gradient.unit].gradients;
        let whole = Mat::new(scratch, self.ranks, part.elements());
        let event = comm.reduce_scatter(device, whole, Mat::flat(part))?;
        self.reducing = Some((gradient, event));
        Ok(())
    }

    /// Waits for the gradients that are on their way.
    pub fn finish_reducing(&mut self, device: &D) -> Result<()> {
        match self.reducing.take() {
            None => Ok(()),
            Some((_gradient, event)) => device.wait(Lane::Compute, &event),
        }
    }

    /// Sum of the squares of all gradients of this rank's part.
    pub fn gradient_squares(&self, device: &D) -> Result<f64> {
        self.shards.iter().map(|s| device.sum_squares(&s.gradients)).sum()
    }

    /// Updates this rank's part. `update` carries all but the keys of the unit.
    pub fn update(&self, device: &D, update: &AdamW) -> Result<()> {
        for (unit, shard) in self.shards.iter().enumerate() {
            let first_element = (self.rank * shard.weights.elements()) as u64;
            let state = AdamWState {
                weights: &shard.weights,
                gradients: &shard.gradients,
                first_moment: &shard.first_moment,
                second_moment: &shard.second_moment,
            };
            device.adamw(&AdamW { unit: unit as u64, first_element, ..*update }, state)?;
        }
        Ok(())
    }

    /// Every tensor of this rank's part as (slot, first element, values); for reading
    /// weights (or gradients) out.
    pub fn export(&self, device: &D, gradients: bool, visit: &mut dyn FnMut(&Slot, usize, &[f32])) -> Result<()> {
        for shard in &self.shards {
            let values = device.read(if gradients { &shard.gradients } else { &shard.weights })?;
            let n = values.len();
            for (slot, first, here) in shard.layout.parts(self.rank * n..(self.rank + 1) * n) {
                visit(slot, first, &values[here]);
            }
        }
        Ok(())
    }
}
