//! The ladder: an experiment file, its rungs, and running them.

pub mod experiment;
mod file;
pub mod validate;
