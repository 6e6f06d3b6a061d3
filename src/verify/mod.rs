//! What must hold on any machine, checked by computing it: each check runs the step that
//! training runs, on a model of a few thousand parameters, and tells how far two results
//! that must agree are apart.

mod checks;
pub mod oracle;
pub mod probe;

use anyhow::Result;
pub use checks::all as checks;
use serde::Serialize;

/// One quantity of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Measure {
    /// What is compared.
    pub quantity: &'static str,
    /// The largest difference over all settings; none where the check ended early.
    pub measured: Option<f64>,
    /// The largest that is right. 0: every bit must be the same.
    pub allowed: f64,
}

impl Measure {
    /// Whether the difference is a number and no larger than allowed.
    pub fn holds(&self) -> bool {
        self.measured.is_some_and(|m| m <= self.allowed)
    }
}

/// A check and its outcome.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// What must hold.
    pub name: String,
    /// The settings that were compared.
    pub settings: String,
    pub measures: Vec<Measure>,
    /// Why the check could not be made.
    pub error: Option<String>,
    pub holds: bool,
    pub seconds: f64,
}

/// A check, not yet made.
pub struct Check {
    pub name: String,
    settings: String,
    /// Quantities with the largest difference that is right.
    allowed: Vec<(&'static str, f64)>,
    /// Measures the quantities, in their order.
    measure: Box<dyn Fn() -> Result<Vec<f64>>>,
}

impl Check {
    fn new(
        name: impl Into<String>,
        settings: impl Into<String>,
        allowed: &[(&'static str, f64)],
        measure: impl Fn() -> Result<Vec<f64>> + 'static,
    ) -> Check {
        let allowed = allowed.to_vec();
        Check { name: name.into(), settings: settings.into(), allowed, measure: Box::new(measure) }
    }

    /// Makes the check.
    pub fn run(&self) -> Outcome {
        let start = std::time::Instant::now();
        let (measured, error) = match (self.measure)() {
            Ok(measured) => (measured, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let measure = |(i, (quantity, allowed)): (usize, &(&'static str, f64))| Measure {
            quantity,
            measured: measured.get(i).copied(),
            allowed: *allowed,
        };
        let measures: Vec<Measure> = self.allowed.iter().enumerate().map(measure).collect();
        Outcome {
            name: self.name.clone(),
            settings: self.settings.clone(),
            holds: error.is_none() && measures.iter().all(Measure::holds),
            measures,
            error,
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// failures.md 23, 25 (YaRN's tables) and the rest of the table: all hold here.
    #[test]
    fn every_check_holds() {
        for check in checks() {
            let outcome = check.run();
            assert!(outcome.holds, "{outcome:?}");
        }
    }

    #[test]
    fn what_is_beyond_or_no_number_or_missing_does_not_hold() {
        let check = |measured: Result<Vec<f64>, &'static str>| {
            Check::new("x", "", &[("a", 0.0), ("b", 1e-3)], move || measured.clone().map_err(anyhow::Error::msg)).run()
        };
        assert!(check(Ok(vec![0.0, 1e-3])).holds);
        for wrong in [Ok(vec![1e-30, 0.0]), Ok(vec![0.0, 2e-3]), Ok(vec![0.0, f64::NAN]), Ok(vec![0.0]), Err("broken")]
        {
            assert!(!check(wrong.clone()).holds, "{wrong:?}");
        }
    }
}
