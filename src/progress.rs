//! Progress of long work.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A progress bar on the standard error.
pub fn bar(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
