//! What a process writes, line by line, while it runs.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Lines read so far, and whether the end was reached.
#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    ended: bool,
}

/// The lines of one output of a process, gathered by a thread of its own.
#[derive(Clone, Default)]
pub struct Log(Arc<(Mutex<Lines>, Condvar)>);

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Log").field(&self.text()).finish()
    }
}

impl Log {
    /// Gathers what `output` gives until it ends.
    pub fn follow(output: impl Read + Send + 'static) -> Log {
        let log = Log::default();
        let shared = Arc::clone(&log.0);
        std::thread::spawn(move || {
            let (lines, changed) = &*shared;
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                lines.lock().unwrap().lines.push(line);
                changed.notify_all();
            }
            lines.lock().unwrap().ended = true;
            changed.notify_all();
        });
        log
    }

    /// Everything so far.
    pub fn text(&self) -> String {
        self.0.0.lock().unwrap().lines.join("\n")
    }

    /// The first line for which `wanted` holds, waiting for it at most `patience`; `None` when the
    /// output ends or time runs out before.
    pub fn find(&self, patience: Duration, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let (lines, changed) = &*self.0;
        let missing =
            |lines: &mut Lines| !lines.ended && !lines.lines.iter().any(|line| wanted(line));
        let lines = lines.lock().unwrap();
        let (lines, _) = changed.wait_timeout_while(lines, patience, missing).unwrap();
        lines.lines.iter().find(|line| wanted(line)).cloned()
    }

    /// Whether the output ends within `patience`.
    pub fn end(&self, patience: Duration) -> bool {
        let (lines, changed) = &*self.0;
        let lines = lines.lock().unwrap();
        changed.wait_timeout_while(lines, patience, |lines| !lines.ended).unwrap().0.ended
    }
}
