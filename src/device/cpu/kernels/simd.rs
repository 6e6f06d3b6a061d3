//! A vectorizable exponential, and dispatch to wider instructions where the
//! processor has them.

/// Runs `$body` compiled for AVX2 and FMA where the processor has them.
macro_rules! dispatch {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $out:ty)? $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)] // the operands of the operation
        $vis fn $name($($arg: $ty),*) $(-> $out)? {
            #[inline(always)]
            #[allow(clippy::too_many_arguments)]
            fn body($($arg: $ty),*) $(-> $out)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                #[allow(clippy::too_many_arguments)]
                fn wide($($arg: $ty),*) $(-> $out)? {
                    body($($arg),*)
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the processor has the features that `wide` is compiled for.
                    return unsafe { wide($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(super) use dispatch;

/// e^x to about 1 ulp: 2^n times a polynomial on [−ln 2 / 2, ln 2 / 2]. Below −87.3
/// (and for −∞) it is 0; it is meant for x ≤ 88.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it rounds to an integer
    let clamped = x.clamp(-87.3, 88.0);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts (Cody and Waite), so that the remainder is exact.
    let r = (clamped - n * 0.693_359_4) + n * 2.121_944_4e-4;
    // Minimax polynomial of e^r (Cephes, expf).
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let value = p * r * r + r + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.3 { 0.0 } else { value * scale }
}

/// Sum in eight lanes, added in a fixed order: vectorizable and the same everywhere.
#[inline(always)]
pub fn sum(values: impl ExactSizeIterator<Item = f32>) -> f32 {
    let mut lanes = [0.0f32; 8];
    for (i, value) in values.enumerate() {
        lanes[i % 8] += value;
    }
    lanes.iter().sum()
}

/// Σ a·b in eight lanes.
#[inline(always)]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let (a_rest, b_rest) = (a8.remainder(), b8.remainder());
    for (a, b) in a8.zip(b8) {
        for i in 0..8 {
            lanes[i] += a[i] * b[i];
        }
    }
    for (i, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[i] += a * b;
    }
    lanes.iter().sum()
}
