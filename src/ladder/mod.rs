//! The ladder: an experiment file, its rungs, and running them.

pub mod attempt;
pub mod experiment;
mod file;
pub mod folder;
pub mod machine;
mod recording;
pub mod resume;
pub mod run;
pub mod validate;

#[cfg(test)]
mod tests;
