//! What runs leave: rows, and the Parquet files that hold them.

mod field;
pub mod losses;
pub mod parquet;
mod plausible;
pub mod run;

use run::{PositionBand, Run, TimelinePoint};

/// All rows of a folder.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Records {
    pub runs: Vec<Run>,
    pub timeline: Vec<TimelinePoint>,
    pub positions: Vec<PositionBand>,
}

impl Records {
    /// Puts a run's rows where its number belongs.
    pub fn add(&mut self, run: Run, timeline: Vec<TimelinePoint>, positions: Vec<PositionBand>) {
        self.runs.push(run);
        self.timeline.extend(timeline);
        self.positions.extend(positions);
        self.runs.sort_by_key(|r| r.run);
        self.timeline.sort_by_key(|p| p.run);
        self.positions.sort_by_key(|p| p.run);
    }
}

impl Records {
    /// A copy of what two runs of the same ladder must have in common, on any machine:
    /// times, what the heap measured and what ran the program are taken out.
    pub fn comparable(&self) -> Records {
        let mut copy = self.clone();
        for run in &mut copy.runs {
            run.started_unix_ms = 0;
            run.step_seconds.iter_mut().for_each(|s| *s = 0.0);
            run.tokens_per_second = None;
            // Of all ranks together: it depends on how they fall in time.
            (run.peak_process_ledger_bytes, run.peak_process_measured_bytes) = (0, 0);
            for text in [&mut run.program_version, &mut run.git_revision, &mut run.host_name, &mut run.cpu] {
                text.clear();
            }
            for text in [&mut run.program_sha256, &mut run.store_path, &mut run.gpu, &mut run.driver] {
                *text = None;
            }
            run.cores = 0;
        }
        for point in &mut copy.timeline {
            (point.started_unix_ms, point.seconds) = (0, 0.0);
        }
        copy.positions.iter_mut().for_each(|band| band.started_unix_ms = 0);
        copy
    }
}

#[cfg(test)]
mod tests;
