//! What runs leave: rows, and the Parquet files that hold them.

mod field;
pub mod parquet;
pub mod run;

use run::{PositionBand, Run, TimelinePoint};

/// All rows of a folder.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Records {
    pub runs: Vec<Run>,
    pub timeline: Vec<TimelinePoint>,
    pub positions: Vec<PositionBand>,
}

#[cfg(test)]
mod tests;
