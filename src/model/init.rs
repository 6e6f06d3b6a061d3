//! Seeded weights, for runs without a trained model.

use anyhow::Result;

use super::layout::Slot;
use crate::mix::mix;
use crate::parallel::shard::WeightSource;

/// Normal values of this deviation, as Qwen3's `initializer_range` has it.
const DEVIATION: f64 = 0.02;

/// Weights drawn by element: a tensor's values depend on the seed, its name and the
/// element's number, so that sharding changes nothing. Norms begin at 1.
pub struct SeededWeights {
    pub seed: u64,
}

impl WeightSource for SeededWeights {
    fn read(&self, slot: &Slot, first: usize, out: &mut [f32]) -> Result<()> {
        if slot.name.ends_with("norm.weight") {
            out.fill(1.0);
            return Ok(());
        }
        let key = slot.name.bytes().fold(mix(self.seed), |key, byte| mix(key ^ u64::from(byte)));
        for (i, value) in out.iter_mut().enumerate() {
            // Box and Muller; the first uniform is never 0.
            let bits = mix(key ^ mix((first + i) as u64));
            let uniform = |bits: u64| (bits as u32 as f64 + 0.5) / 4_294_967_296.0;
            let (a, b) = (uniform(bits), uniform(bits >> 32));
            *value = (DEVIATION * (-2.0 * a.ln()).sqrt() * (2.0 * std::f64::consts::PI * b).cos()) as f32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::layout::Part;

    #[test]
    fn values_are_normal_and_independent_of_the_split() {
        let slot = Slot { part: Part::Q, name: "q.weight".to_string(), rows: 100, cols: 100, offset: 0 };
        let source = SeededWeights { seed: 3 };
        let (mut whole, mut part) = (vec![0.0; 10_000], vec![0.0; 3_000]);
        source.read(&slot, 0, &mut whole).unwrap();
        source.read(&slot, 7_000, &mut part).unwrap();
        assert_eq!(whole[7_000..], part[..]);
        let mean = whole.iter().map(|x| f64::from(*x)).sum::<f64>() / 1e4;
        let variance = whole.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 1e-3 && (variance.sqrt() / DEVIATION - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
