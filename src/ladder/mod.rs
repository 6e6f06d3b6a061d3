//! The ladder: an experiment file, its rungs, and running them.

pub mod attempt;
mod count;
pub mod experiment;
mod file;
pub mod folder;
pub mod machine;
mod recording;
pub mod resume;
pub mod run;
mod toggles_file;
pub mod validate;

#[cfg(test)]
mod tests;
