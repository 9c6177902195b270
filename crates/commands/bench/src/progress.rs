//! A line of progress on standard error, only if that is a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(quiet: bool) -> Progress {
        // What is not a terminal is shown nothing.
        let shown = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr_with_hz(5)
        };
        Progress(ProgressBar::with_draw_target(None, shown))
    }

    /// A new phase of `length` steps; 0 is a phase of unknown length.
    pub(super) fn phase(&self, name: &'static str, length: u64) {
        let shape = if length == 0 { "{msg} {spinner}" } else { "{msg} [{bar:30}] {pos}/{len}" };
        if let Ok(style) = ProgressStyle::with_template(shape) {
            self.0.set_style(style);
        }
        self.0.set_length(length);
        self.0.set_position(0);
        self.0.set_message(name);
    }

    pub(super) fn set(&self, position: u64) {
        if self.0.position() != position {
            self.0.set_position(position);
        }
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
