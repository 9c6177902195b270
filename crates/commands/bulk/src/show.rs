//! Progress on standard error, only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Interval at which a person is shown something new.
pub(crate) const SHOW: Duration = Duration::from_millis(200);

pub(super) struct Show(ProgressBar);

impl Show {
    pub(super) fn new(quiet: bool) -> Show {
        // What is not a terminal is shown nothing.
        let shown = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(5)
        };
        let bar = ProgressBar::with_draw_target(Some(0), shown);
        let shape = "[{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta} {msg}";
        if let Ok(style) = ProgressStyle::with_template(shape) {
            bar.set_style(style);
        }
        Show(bar)
    }

    pub(super) fn set(&self, done: u64, total: u64, message: String) {
        self.0.set_length(total);
        self.0.set_position(done);
        self.0.set_message(message);
    }

    /// Prints a line that stays.
    pub(super) fn print_line(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    /// Clears the progress line while something is written to standard output.
    pub(super) fn aside(&self, write: impl FnOnce()) {
        self.0.suspend(write);
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
