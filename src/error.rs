//! The one error that the command line treats apart: wrong input by the user.

/// Wrong input: the program exits with status 2 and prints the message alone.
///
/// A message says what was wrong, where (file, key, line), and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadInput(pub String);

/// Returns early with a [`BadInput`] made from a format string.
#[macro_export]
macro_rules! bad_input {
    ($($arg:tt)*) => { return Err(anyhow::Error::new($crate::error::BadInput(format!($($arg)*)))) };
}
