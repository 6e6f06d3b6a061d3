//! AdamW (torch.optim.AdamW's arithmetic), with moments in f32 or, rounded
//! stochastically, in bf16; and the sum of squares for the gradient norm.

use half::bf16;
use rayon::prelude::*;

use crate::device::AdamW;
use crate::mix::mix;

/// Elements that one task takes.
const RUN: usize = 1 << 14;

/// The constants of an update in the elements' type.
struct Constants {
    beta1: f32,
    beta2: f32,
    one_minus_beta1: f32,
    one_minus_beta2: f32,
    step_size: f32,
    inverse_root_correction2: f32,
    eps: f32,
    gradient_scale: f32,
}

impl Constants {
    fn new(s: &AdamW) -> Constants {
        let correction = |beta: f64| 1.0 - beta.powi(s.update as i32);
        Constants {
            beta1: s.beta1 as f32,
            beta2: s.beta2 as f32,
            one_minus_beta1: (1.0 - s.beta1) as f32,
            one_minus_beta2: (1.0 - s.beta2) as f32,
            step_size: (s.learning_rate / correction(s.beta1)) as f32,
            inverse_root_correction2: (1.0 / correction(s.beta2).sqrt()) as f32,
            eps: s.eps as f32,
            gradient_scale: s.gradient_scale as f32,
        }
    }
}

impl Constants {
    /// New moments and the weight's change, from the moments before.
    #[inline(always)]
    fn update(&self, g: f32, m: f32, v: f32) -> (f32, f32, f32) {
        let g = g * self.gradient_scale;
        let m = self.beta1 * m + self.one_minus_beta1 * g;
        let v = self.beta2 * v + self.one_minus_beta2 * g * g;
        (m, v, self.step_size * m / (v.sqrt() * self.inverse_root_correction2 + self.eps))
    }
}

/// One update with f32 moments, in place.
pub fn adamw_f32(settings: &AdamW, w: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    let c = Constants::new(settings);
    w.par_chunks_mut(RUN).zip(g.par_chunks(RUN)).zip(m.par_chunks_mut(RUN).zip(v.par_chunks_mut(RUN))).for_each(
        |((w, g), (m, v))| {
            for i in 0..w.len() {
                let (new_m, new_v, change) = c.update(g[i], m[i], v[i]);
                (m[i], v[i], w[i]) = (new_m, new_v, w[i] - change);
            }
        },
    );
}

/// One update with bf16 moments, rounded stochastically after the weight took the unrounded ones.
pub fn adamw_bf16(settings: &AdamW, w: &mut [f32], g: &[f32], m: &mut [bf16], v: &mut [bf16]) {
    let c = Constants::new(settings);
    let key = mix(mix(settings.seed ^ 0x6164_616d_7721) ^ mix(settings.unit << 32 | u64::from(settings.update)));
    let runs = w.par_chunks_mut(RUN).zip(g.par_chunks(RUN)).zip(m.par_chunks_mut(RUN).zip(v.par_chunks_mut(RUN)));
    runs.enumerate().for_each(|(run, ((w, g), (m, v)))| {
        let first = settings.first_element + (run * RUN) as u64;
        for i in 0..w.len() {
            let (new_m, new_v, change) = c.update(g[i], m[i].to_f32(), v[i].to_f32());
            let random = mix(key ^ (first + i as u64));
            m[i] = round_stochastically(new_m, random as u16);
            v[i] = round_stochastically(new_v, (random >> 16) as u16);
            w[i] -= change;
        }
    });
}

/// To one of the two neighbours in bf16, each as likely as it is near.
fn round_stochastically(x: f32, random: u16) -> bf16 {
    if !x.is_finite() {
        return bf16::from_f32(x);
    }
    bf16::from_bits((x.to_bits().wrapping_add(u32::from(random)) >> 16) as u16)
}

/// Σ x², in f64.
pub fn sum_squares(x: &[f32]) -> f64 {
    let runs: Vec<f64> =
        x.par_chunks(RUN).map(|run| run.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>()).collect();
    runs.into_iter().sum()
}
