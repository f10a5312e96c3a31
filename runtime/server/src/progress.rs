//! What moves on the terminal while work goes on. Nothing is drawn when standard error
//! is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `n_steps` steps.
pub fn bar(what: &str, n_steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg} {elapsed}")
        .expect("the template is valid")
        .progress_chars("=> ");
    let bar = ProgressBar::new(n_steps).with_style(style);
    bar.set_prefix(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
