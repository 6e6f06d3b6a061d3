//! What the plan chooses: which layers keep what, and where, for a length, a budget and a
//! host. Layer inputs come first, then attention outputs; each on the device while it fits,
//! then in host memory, else computed again.

use anyhow::Result;

use super::Setting;
use crate::train::toggles::{Keep, Offload, Toggles};

/// Tokens of a sequence above which bringing an attention output back from host memory is
/// faster than computing it again: at an H200's 55 GB/s and cuDNN's speed.
const HOST_ATTENTION_FROM: u64 = 28 * 1024;

/// The sparsest checkpoints that are chosen: the layers between two of them are on the device
/// together when they are computed again, which takes back what is saved.
const SPARSEST: usize = 6;

/// With the least memory on the device: all that may go to host memory is there, as far as it
/// has room. None if that doesn't fit either.
pub(super) fn smallest(s: &Setting, length: u64) -> Result<Option<Toggles>> {
    let layers = s.model.num_hidden_layers;
    let least = least(s);
    if !s.fits_device(&least, length)? {
        // Fewer checkpoints take no less on the device.
        return Ok(None);
    }
    let last = if s.auto.every { SPARSEST.min(layers) } else { s.toggles.every };
    for every in least.every..=last {
        let toggles = Toggles { every, ..least.clone() };
        let host = s.with(toggles.clone(), length)?.node_bytes();
        let room = s.room.host.unwrap_or(u64::MAX);
        if host <= room {
            return Ok(s.fits_device(&toggles, length)?.then_some(toggles));
        }
        if s.auto.offload {
            // As many inputs as host memory has room for; the rest stays on the device.
            let checkpoints = layers.div_ceil(every);
            let inputs = (checkpoints as u128 * u128::from(room) / u128::from(host)) as usize * every;
            let offload = Offload::Layers { inputs, attention: 0 };
            let part = Toggles { offload, ..toggles };
            if s.fits_with(&part, length)? {
                return Ok(Some(part));
            }
        }
    }
    Ok(None)
}

/// What takes the least on the device.
fn least(s: &Setting) -> Toggles {
    let keep = if s.auto.keep { Keep::Inputs } else { s.toggles.keep };
    let offload = if s.auto.offload { Offload::Host } else { s.toggles.offload };
    Toggles { keep, offload, ..s.toggles.clone() }
}

/// The toggles for a length. If nothing fits, those that take the least on the device.
pub(super) fn choose(s: &Setting, length: u64) -> Result<Toggles> {
    let layers = s.model.num_hidden_layers;
    let Some(mut chosen) = smallest(s, length)? else { return Ok(least(s)) };
    if s.auto.offload && chosen.offload == Offload::Host {
        chosen.offload = Offload::Layers { inputs: layers, attention: s.toggles_attention(&chosen) };
        // As few inputs in host memory as the device needs.
        let with = |inputs: usize| {
            let Offload::Layers { attention, .. } = chosen.offload else { return chosen.clone() };
            Toggles { offload: Offload::Layers { inputs, attention }, ..chosen.clone() }
        };
        let inputs = first(layers, |inputs| s.fits_with(&with(inputs), length))?;
        chosen = with(inputs);
    }
    if s.auto.keep {
        chosen = keep_attention(s, chosen, length)?;
    }
    Ok(plain(chosen, layers))
}

impl Setting<'_> {
    /// How many layers' attention outputs toggles keep.
    fn toggles_attention(&self, toggles: &Toggles) -> usize {
        let layers = self.model.num_hidden_layers;
        layers - toggles.keep.attention_from(layers)
    }
}

/// Keeps attention outputs: of as many layers as the device has room for, then of as many
/// before these as host memory has.
fn keep_attention(s: &Setting, chosen: Toggles, length: u64) -> Result<Toggles> {
    let layers = s.model.num_hidden_layers;
    let inputs = chosen.offload.layers().0.min(layers);
    let with = |kept: usize, hosted: usize| {
        let keep = if kept == 0 { Keep::Inputs } else { Keep::Layers(kept) };
        let offload = Offload::Layers { inputs, attention: hosted };
        Toggles { keep, offload, ..chosen.clone() }
    };
    if !s.auto.offload && s.toggles.offload == Offload::Host {
        // All that is kept is asked to be in host memory.
        let kept = most(layers, |kept| s.fits_with(&with(kept, kept), length))?;
        return Ok(with(kept, kept));
    }
    let device = most(layers, |kept| s.fits_with(&with(kept, 0), length))?;
    let hosted = match s.auto.offload && length >= HOST_ATTENTION_FROM {
        true => most(layers - device, |hosted| s.fits_with(&with(device + hosted, hosted), length))?,
        false => 0,
    };
    Ok(with(device + hosted, hosted))
}

/// The least n in 0..=last for which `fits` holds; it holds at `last`, and from the first on.
fn first(last: usize, fits: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    let (mut low, mut high) = (0, last);
    while low < high {
        let middle = low + (high - low) / 2;
        if fits(middle)? {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Ok(high)
}

/// The most n in 0..=last for which `fits` holds; it holds at 0, and up to the last.
fn most(last: usize, fits: impl Fn(usize) -> Result<bool>) -> Result<usize> {
    Ok(last - first(last, |n| fits(last - n))?)
}

/// Toggles that say all or nothing by the names of that.
fn plain(mut t: Toggles, layers: usize) -> Toggles {
    let kept = layers - t.keep.attention_from(layers);
    if kept == layers {
        t.keep = Keep::Attention;
    }
    let (inputs, attention) = t.offload.layers();
    t.offload = match (inputs.min(layers), attention.min(kept)) {
        (0, 0) => Offload::None,
        (inputs, attention) if inputs == layers && attention == kept => Offload::Host,
        (inputs, attention) => Offload::Layers { inputs, attention },
    };
    t
}
