//! What runs leave: rows, and the Parquet files that hold them.

pub mod run;

use run::{PositionBand, Run, TimelinePoint};

/// All rows of a folder.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Records {
    pub runs: Vec<Run>,
    pub timeline: Vec<TimelinePoint>,
    pub positions: Vec<PositionBand>,
}
