//! The kernels against plain f64 arithmetic.
