//! What the forward pass keeps for the backward pass, and where it lives meanwhile.
//!
//! A kept buffer that goes to host memory is copied there on the out lane
//! while its layer computes, leaves the device when that is done, and comes back on
//! the in lane one layer ahead of its use. Host memory is taken once, exactly sized,
//! and reused by every step.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use anyhow::{Result, anyhow};

use super::toggles::Toggles;
use crate::device::{Buffer, Device, Lane, Mat};
use crate::memory::category::Category;
use crate::memory::ledger::Place;

/// Which kept buffer of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    Input,
    Attention,
    LogSumExp,
}

impl Kind {
    fn category(self) -> Category {
        match self {
            Kind::Input => Category::LayerInputs,
            Kind::Attention | Kind::LogSumExp => Category::AttentionOutputs,
        }
    }
}

type Key = (usize, Kind);

/// Kept activations of one rank.
pub struct Saved<D: Device> {
    /// Inputs of the layers before this one go to host memory.
    inputs_to_host: usize,
    /// Attention outputs of the layers before this one go to host memory.
    attention_to_host: usize,
    /// On the device: kept there, or back from host memory (with the event of the copy).
    here: HashMap<Key, (D::Buffer, Option<D::Event>)>,
    /// In host memory; stays from step to step.
    host: HashMap<Key, D::Buffer>,
}

impl<D: Device> Saved<D> {
    /// Nothing kept yet.
    pub fn new(toggles: &Toggles, layers: usize) -> Self {
        let (inputs, attention) = toggles.offload.layers();
        let attention_to_host = toggles.keep.attention_from(layers).saturating_add(attention);
        Saved { inputs_to_host: inputs, attention_to_host, here: HashMap::new(), host: HashMap::new() }
    }

    fn goes_to_host(&self, layer: usize, kind: Kind) -> bool {
        match kind {
            Kind::Input => layer < self.inputs_to_host,
            Kind::Attention | Kind::LogSumExp => layer < self.attention_to_host,
        }
    }

    /// Begins to copy a buffer to host memory, where that is asked for. The buffer may
    /// be read meanwhile; [`Saved::keep`] follows.
    pub fn send(&mut self, device: &D, layer: usize, kind: Kind, buffer: &D::Buffer) -> Result<Option<D::Event>> {
        if !self.goes_to_host(layer, kind) {
            return Ok(None);
        }
        let key = (layer, kind);
        let host = match self.host.entry(key) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(new) => {
                new.insert(device.allocate(Place::Host, kind.category(), buffer.dtype(), buffer.elements())?)
            }
        };
        let host = &*host;
        let computed = device.record(Lane::Compute)?;
        device.wait(Lane::Out, &computed)?;
        device.copy(Lane::Out, Mat::flat(buffer), Mat::flat(host))?;
        device.record(Lane::Out).map(Some)
    }

    /// Keeps a buffer until it is taken: on the device, or (once its copy is done) in host memory.
    pub fn keep(
        &mut self,
        device: &D,
        layer: usize,
        kind: Kind,
        buffer: D::Buffer,
        sent: Option<D::Event>,
    ) -> Result<()> {
        match sent {
            Some(event) => device.wait(Lane::Compute, &event),
            None => {
                self.here.insert((layer, kind), (buffer, None));
                Ok(())
            }
        }
    }

    /// Begins to bring a buffer back, if it is in host memory and not yet on its way.
    pub fn fetch(&mut self, device: &D, layer: usize, kind: Kind) -> Result<()> {
        let key = (layer, kind);
        let Some(host) = self.host.get(&key).filter(|_| !self.here.contains_key(&key)) else { return Ok(()) };
        let back = device.allocate(Place::Device, kind.category(), host.dtype(), host.elements())?;
        device.copy(Lane::In, Mat::flat(host), Mat::flat(&back))?;
        let event = device.record(Lane::In)?;
        self.here.insert(key, (back, Some(event)));
        Ok(())
    }

    /// Gives back a buffer that was taken for reading and will be taken again.
    pub fn put_back(&mut self, layer: usize, kind: Kind, buffer: D::Buffer) {
        self.here.insert((layer, kind), (buffer, None));
    }

    /// A kept buffer, on the device and whole.
    pub fn take(&mut self, device: &D, layer: usize, kind: Kind) -> Result<D::Buffer> {
        self.fetch(device, layer, kind)?;
        let (buffer, event) =
            self.here.remove(&(layer, kind)).ok_or_else(|| anyhow!("nothing kept of layer {layer}, {kind:?}"))?;
        if let Some(event) = event {
            device.wait(Lane::Compute, &event)?;
        }
        Ok(buffer)
    }
}
