//! A log that nobody waits for: lines go into a bounded queue, and a thread writes them to standard error.
//!
//! Standard error is often a pipe, whose reader may lag or be gone. A worker that waited for it would serve no client
//! meanwhile. Lines for which there is no room are dropped and counted; a line reports their number when standard error
//! accepts lines again.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

/// Lines that wait while standard error accepts nothing; of 200 bytes as a rule, 20 kB at most.
const MAX_LINES: usize = 1024;
/// Time for the last lines when the program ends, and between two attempts to queue the request for them.
const LAST_LINES: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(10);

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Log lines that were dropped because standard error did not accept them.
pub fn dropped_lines() -> u64 {
    DROPPED.load(Relaxed)
}

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// Everything before it is to be written.
    Flush(Sender<()>),
}

/// The queue's end for lines. A call of `write` is a line.
#[derive(Clone, Debug)]
pub(crate) struct LogQueue(SyncSender<Entry>);

impl LogQueue {
    /// Starts the thread that writes to `output`; it calls `report` with the number of lines that were dropped.
    pub(crate) fn start(
        mut output: impl Write + Send + 'static,
        report: fn(u64),
    ) -> io::Result<LogQueue> {
        let (sender, entries) = sync_channel(MAX_LINES);
        let mut reported = dropped_lines();
        let body = move || {
            for entry in entries {
                match entry {
                    Entry::Flush(done) => drop(done.send(())),
                    Entry::Line(line) if output.write_all(&line).is_err() => {
                        DROPPED.fetch_add(1, Relaxed);
                    }
                    Entry::Line(_) if dropped_lines() > reported => {
                        let dropped = dropped_lines();
                        report(dropped - std::mem::replace(&mut reported, dropped));
                    }
                    Entry::Line(_) => {}
                }
            }
        };
        std::thread::Builder::new().name("fulmar-log".into()).spawn(body)?;
        Ok(LogQueue(sender))
    }

    /// Waits until everything is written, but not for an output that accepts nothing.
    fn finish(&self) {
        let (done, written) = channel();
        for _ in 0..LAST_LINES.as_millis() / AGAIN.as_millis() {
            match self.0.try_send(Entry::Flush(done.clone())) {
                Err(TrySendError::Full(_)) => std::thread::sleep(AGAIN),
                _ => {
                    let _ = written.recv_timeout(LAST_LINES);
                    return;
                }
            }
        }
    }
}

impl Write for LogQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.0.try_send(Entry::Line(line.to_vec())).is_err() {
            DROPPED.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes the last lines when it is dropped.
#[derive(Debug)]
pub struct LastLines(pub(crate) LogQueue);

impl Drop for LastLines {
    fn drop(&mut self) {
        self.0.finish();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc::Receiver;

    /// An output that accepts a write for each permit, and fails once there are no more.
    struct Reluctant(Receiver<()>);

    impl Write for Reluctant {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    static REPORTED: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn lines_are_dropped_and_counted_instead_of_waited_for() {
        let (permit, permits) = channel();
        let report = |lines| _ = REPORTED.fetch_add(lines, Relaxed);
        let mut queue = LogQueue::start(Reluctant(permits), report).unwrap();
        // The thread may have taken one.
        for _ in 0..MAX_LINES + 100 {
            assert_eq!(queue.write(b"line\n").unwrap(), 5);
        }
        let dropped = dropped_lines();
        assert!((99..=100).contains(&dropped), "{dropped}");
        for _ in dropped..MAX_LINES as u64 + 100 {
            permit.send(()).unwrap();
        }
        queue.finish();
        assert_eq!(REPORTED.load(Relaxed), dropped, "a line says so");
        drop(permit);
        queue.write_all(b"line\n").unwrap();
        queue.finish();
        assert!(dropped_lines() > dropped, "nobody has the other end");
    }
}
