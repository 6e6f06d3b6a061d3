//! Tensors read out of a run's ranks, each rank its part.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;

use super::world::CpuTrainer;

/// Values by the published name of their tensor.
pub type Tensors = HashMap<String, Vec<f32>>;

/// Tensors as they come together; NaN where no rank has been.
#[derive(Debug, Default)]
pub struct Gathered(Mutex<Tensors>);

impl Gathered {
    /// Takes a rank's part of all gradients, or of all weights.
    pub fn take(&self, trainer: &CpuTrainer, gradients: bool) -> Result<()> {
        trainer.parameters.export(trainer.device, gradients, &mut |slot, first, values| {
            let mut tensors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let whole = tensors.entry(slot.name.clone()).or_insert_with(|| vec![f32::NAN; slot.rows * slot.cols]);
            whole[first..first + values.len()].copy_from_slice(values);
        })
    }

    /// What has come together.
    pub fn into_inner(self) -> Tensors {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
