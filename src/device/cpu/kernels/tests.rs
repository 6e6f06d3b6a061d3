//! The kernels against plain f64 arithmetic.

use super::*;
use crate::device::{AttentionShape, IGNORED};

fn wave(n: usize, key: f64) -> Vec<f32> {
    (0..n).map(|i| ((i as f64 * 0.737 + key) * 1.31).sin() as f32).collect()
}

fn rows(data: &[f32], cols: usize) -> Rows<'_> {
    Rows::new(data, data.len() / cols, cols, cols)
}

fn rows_mut(data: &mut [f32], cols: usize) -> RowsMut<'_> {
    let n = data.len() / cols;
    RowsMut::new(data, n, cols, cols)
}

fn near(a: f32, b: f64, to: f64) {
    assert!((f64::from(a) - b).abs() <= to * (1.0 + b.abs()), "{a} is not {b}");
}

/// A row of a product must not depend on the rows beside it: what makes tiles exact.
#[test]
fn rows_of_a_product_do_not_depend_on_the_tiling() {
    for (k, n) in [(24, 16), (64, 200), (700, 48), (3000, 33)] {
        let (a, b) = (wave(230 * k, 1.0), wave(n * k, 2.0));
        let mut whole = vec![0.0; 230 * n];
        matmul(rows(&a, k), false, rows(&b, k), true, rows_mut(&mut whole, n), false);
        for (from, to) in [(0, 32), (5, 42), (64, 128), (100, 200), (130, 230), (33, 97), (7, 207)] {
            let mut part = vec![0.0; (to - from) * n];
            matmul(rows(&a, k).part(from, to), false, rows(&b, k), true, rows_mut(&mut part, n), false);
            let same = part.iter().zip(&whole[from * n..to * n]).all(|(x, y)| x.to_bits() == y.to_bits());
            assert!(same, "k = {k}, n = {n}, rows {from}..{to}");
        }
    }
}

#[test]
fn products_in_every_orientation() {
    let (m, n, k) = (37, 19, 53);
    let (a, b) = (wave(m * k, 0.0), wave(k * n, 5.0));
    let transposed = |x: &[f32], r: usize, c: usize| -> Vec<f32> {
        (0..c).flat_map(|j| (0..r).map(move |i| (i, j))).map(|(i, j)| x[i * c + j]).collect()
    };
    let (at, bt) = (transposed(&a, m, k), transposed(&b, k, n));
    for (trans_a, trans_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let a_rows = if trans_a { rows(&at, m) } else { rows(&a, k) };
        let b_rows = if trans_b { rows(&bt, k) } else { rows(&b, n) };
        let mut c = vec![1.0; m * n];
        matmul(a_rows, trans_a, b_rows, trans_b, rows_mut(&mut c, n), true);
        for i in 0..m {
            for j in 0..n {
                let sum: f64 = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum();
                near(c[i * n + j], sum + 1.0, 1e-5);
            }
        }
    }
}

#[test]
fn the_exponential_is_right_to_an_ulp_or_so() {
    for i in -8800..8800 {
        let x = i as f32 * 0.00991;
        near(simd::exp(x), f64::from(x).exp(), 3e-7 * if x > 0.0 { 1.0 } else { f64::from(x).exp() });
    }
    assert_eq!(simd::exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(simd::exp(0.0), 1.0);
}

struct Case {
    a: AttentionShape,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_o: Vec<f32>,
    q_rows: usize,
    kv_rows: usize,
}

impl Case {
    fn new(heads: usize, kv_heads: usize, d: usize, q_rows: usize, kv_rows: usize, causal: bool) -> Case {
        let a = AttentionShape { heads, kv_heads, head_dim: d, scale: 1.0 / (d as f32).sqrt(), causal };
        let (q, kv) = (heads * d, kv_heads * d);
        Case {
            a,
            q: wave(q_rows * q, 0.3),
            k: wave(kv_rows * kv, 1.7),
            v: wave(kv_rows * kv, 2.9),
            d_o: wave(q_rows * q, 4.1),
            q_rows,
            kv_rows,
        }
    }

    fn cols(&self) -> (usize, usize) {
        (self.a.heads * self.a.head_dim, self.a.kv_heads * self.a.head_dim)
    }

    fn forward(&self) -> (Vec<f32>, Vec<f32>) {
        let (q_cols, kv_cols) = self.cols();
        let (mut o, mut lse) = (vec![f32::NAN; self.q_rows * q_cols], vec![f32::NAN; self.a.heads * self.q_rows]);
        let (q, k, v) = (rows(&self.q, q_cols), rows(&self.k, kv_cols), rows(&self.v, kv_cols));
        attention_forward(&self.a, q, k, v, rows_mut(&mut o, q_cols), rows_mut(&mut lse, self.q_rows));
        (o, lse)
    }

    /// o, lse, dq, dk, dv in f64.
    fn plain(&self) -> [Vec<f64>; 5] {
        let (q_cols, kv_cols) = self.cols();
        let (d, group) = (self.a.head_dim, self.a.heads / self.a.kv_heads);
        let at = |x: &[f32], i: usize| f64::from(x[i]);
        let mut out = [
            vec![0.0; self.q.len()],
            vec![0.0; self.a.heads * self.q_rows],
            vec![0.0; self.q.len()],
            vec![0.0; self.k.len()],
            vec![0.0; self.v.len()],
        ];
        for head in 0..self.a.heads {
            for i in 0..self.q_rows {
                let seen = if self.a.causal { i + 1 } else { self.kv_rows };
                let (qi, kj) = (i * q_cols + head * d, |j: usize| j * kv_cols + head / group * d);
                let dot = |x: &[f32], a: usize, y: &[f32], b: usize| -> f64 {
                    (0..d).map(|e| at(x, a + e) * at(y, b + e)).sum()
                };
                let scale = f64::from(self.a.scale);
                let scores: Vec<f64> = (0..seen).map(|j| dot(&self.q, qi, &self.k, kj(j)) * scale).collect();
                let lse = scores.iter().map(|s| s.exp()).sum::<f64>().ln();
                let p: Vec<f64> = scores.iter().map(|s| (s - lse).exp()).collect();
                let d_p: Vec<f64> = (0..seen).map(|j| dot(&self.d_o, qi, &self.v, kj(j))).collect();
                let delta: f64 = p.iter().zip(&d_p).map(|(p, d)| p * d).sum();
                out[1][head * self.q_rows + i] = lse;
                for j in 0..seen {
                    let d_s = p[j] * (d_p[j] - delta) * scale;
                    for e in 0..d {
                        out[0][qi + e] += p[j] * at(&self.v, kj(j) + e);
                        out[2][qi + e] += d_s * at(&self.k, kj(j) + e);
                        out[3][kj(j) + e] += d_s * at(&self.q, qi + e);
                        out[4][kj(j) + e] += p[j] * at(&self.d_o, qi + e);
                    }
                }
            }
        }
        out
    }
}

#[test]
fn attention_forward_and_backward_in_every_shape() {
    let shapes = [
        (1, 1, 16, 5, 5, true),
        (4, 2, 16, 150, 150, true),
        (6, 2, 8, 70, 201, false),
        (3, 1, 32, 200, 33, false),
        (4, 4, 10, 129, 129, true),
    ];
    for (heads, kv_heads, d, q_rows, kv_rows, causal) in shapes {
        let case = Case::new(heads, kv_heads, d, q_rows, kv_rows, causal);
        let [o, lse, dq, dk, dv] = case.plain();
        let (our_o, our_lse) = case.forward();
        let check = |ours: &[f32], theirs: &[f64]| ours.iter().zip(theirs).for_each(|(a, b)| near(*a, *b, 2e-5));
        check(&our_o, &o);
        check(&our_lse, &lse);
        let (q_cols, kv_cols) = case.cols();
        let mut delta = vec![0.0; heads * q_rows];
        let mut ours = [vec![1.0; case.q.len()], vec![1.0; case.k.len()], vec![1.0; case.v.len()]];
        let [a, b, c] = &mut ours;
        attention_backward(
            &case.a,
            rows(&case.q, q_cols),
            rows(&case.k, kv_cols),
            rows(&case.v, kv_cols),
            rows(&our_o, q_cols),
            rows(&case.d_o, q_cols),
            rows(&our_lse, q_rows),
            &mut delta,
            rows_mut(a, q_cols),
            rows_mut(b, kv_cols),
            rows_mut(c, kv_cols),
            true,
        );
        for (ours, theirs) in ours.iter().zip([dq, dk, dv]) {
            let minus_one: Vec<f32> = ours.iter().map(|x| x - 1.0).collect();
            check(&minus_one, &theirs);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let case = Case::new(4, 2, 16, 300, 300, true);
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.forward())
    };
    assert_eq!(with(1), with(3));
}

/// failures.md 13, 15: differences of ±10,000, and empty states.
#[test]
fn merging_is_stable() {
    let merged = |old: (f32, f32), new: (f32, f32)| {
        let (mut o, mut lse) = (vec![old.0], vec![old.1]);
        merge(rows_mut(&mut o, 1), rows_mut(&mut lse, 1), rows(&[new.0], 1), rows(&[new.1], 1), 1);
        (o[0], lse[0])
    };
    let empty = f32::NEG_INFINITY;
    assert_eq!(merged((1.0, 1e4), (2.0, 0.0)), (1.0, 1e4));
    assert_eq!(merged((1.0, 0.0), (2.0, 1e4)), (2.0, 1e4));
    assert_eq!(merged((1.0, 3.0), (9.0, empty)), (1.0, 3.0));
    assert_eq!(merged((0.0, empty), (2.0, 3.0)), (2.0, 3.0));
    assert_eq!(merged((0.0, empty), (0.0, empty)), (0.0, empty));
    let (o, lse) = merged((1.0, 0.0), (3.0, 0.0));
    assert!((o - 2.0).abs() < 1e-6 && (lse - 2f32.ln()).abs() < 1e-6);
}

/// failures.md 26: at position 1,048,575 an f32 product is off by hundredths of a turn.
#[test]
fn phases_are_right_at_the_last_position_of_a_million() {
    let frequencies = [1.0, 0.805_842_220_783, 1e-3];
    let (mut cos, mut sin) = (vec![0.0; 6], vec![0.0; 6]);
    rope_table(&frequencies, &[1_048_574, 1_048_575], 1.5, rows_mut(&mut cos, 3), rows_mut(&mut sin, 3));
    for (i, position) in [1_048_574.0f64, 1_048_575.0].into_iter().enumerate() {
        for (j, f) in frequencies.into_iter().enumerate() {
            near(cos[i * 3 + j], 1.5 * (position * f).cos(), 1e-7);
            near(sin[i * 3 + j], 1.5 * (position * f).sin(), 1e-7);
        }
    }
}

#[test]
fn ignored_targets_leave_nothing_and_both_losses_agree_bitwise() {
    let (n, vocabulary) = (70, 131);
    let z = wave(n * vocabulary, 0.2);
    let targets: Vec<u32> = (0..n as u32).map(|i| if i % 3 == 0 { IGNORED } else { i }).collect();
    let (mut in_place, mut losses) = (z.clone(), vec![f32::NAN; n]);
    cross_entropy_in_place(rows_mut(&mut in_place, vocabulary), &targets, 0.5, &mut losses);
    let (mut log_p, mut d, mut full) = (vec![0.0; z.len()], vec![0.0; z.len()], vec![f32::NAN; n]);
    log_softmax(rows(&z, vocabulary), rows_mut(&mut log_p, vocabulary));
    nll_and_gradient(rows(&log_p, vocabulary), &targets, 0.5, &mut full, rows_mut(&mut d, vocabulary));
    for i in 0..n {
        assert_eq!(losses[i].to_bits(), (full[i] + 0.0).to_bits());
        let row = |x: &[f32]| x[i * vocabulary..(i + 1) * vocabulary].to_vec();
        if targets[i] == IGNORED {
            assert!(losses[i] == 0.0 && row(&in_place).iter().all(|x| *x == 0.0));
            continue;
        }
        let sum: f64 = row(&z).iter().map(|z| f64::from(*z).exp()).sum();
        for (j, (ours, z)) in row(&in_place).into_iter().zip(row(&z)).enumerate() {
            let one = if j as u32 == targets[i] { 1.0 } else { 0.0 };
            near(ours, (f64::from(z).exp() / sum - one) * 0.5, 1e-6);
            near(row(&d)[j], f64::from(ours), 1e-6);
        }
    }
}

/// failures.md 40: a bf16 moment rounded to nearest stands still under small changes;
/// rounded stochastically it follows on average, the same for every sharding.
#[test]
fn stochastic_rounding_follows_on_average_and_ignores_sharding() {
    let n = 4096;
    let update = crate::device::AdamW {
        learning_rate: 0.0,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        update: 1,
        gradient_scale: 1.0,
        seed: 3,
        unit: 1,
        first_element: 0,
    };
    let run = |from: usize, to: usize| {
        let mut v = vec![half::bf16::from_f32(1.0); to - from];
        let mut m = vec![half::bf16::from_f32(0.0); to - from];
        let mut w = vec![0.0; to - from];
        let g = vec![1.5f32.sqrt(); to - from];
        for step in 1..=20 {
            let update = crate::device::AdamW { update: step, first_element: from as u64, ..update };
            adamw_bf16(&update, &mut w, &g, &mut m, &mut v);
        }
        v
    };
    let whole = run(0, n);
    assert_eq!(whole[n / 2..], run(n / 2, n)[..]);
    let mean: f64 = whole.iter().map(|v| f64::from(v.to_f32())).sum::<f64>() / n as f64;
    let exact = 1.5 - 0.5 * 0.999f64.powi(20);
    assert!((mean - exact).abs() < 1e-3, "{mean} is not {exact}");
    assert!((half::bf16::from_f32(1.0 + 0.0005).to_f32() - 1.0).abs() < 1e-9, "to nearest it stands still");
}

#[test]
fn the_sum_of_squares_is_exact_to_f64() {
    let x = wave(100_000, 0.1);
    let plain: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    assert!((sum_squares(&x) / plain - 1.0).abs() < 1e-12);
}
