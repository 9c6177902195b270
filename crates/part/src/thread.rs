//! Threads that end when their owner drops them.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

/// A runtime for one thread.
///
/// # Errors
/// There are no file descriptors left.
pub fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A thread; dropping this tells it to end, and waits until it has ended.
pub struct Thread {
    name: &'static str,
    stop: Option<Box<dyn Send + Sync>>,
    thread: Option<JoinHandle<()>>,
}

/// Tells a thread that does not use a runtime when to end.
pub struct Stopped(mpsc::Receiver<()>);

impl Stopped {
    /// Waits for this time; returns false as soon as the thread is to end.
    pub fn pause(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
    }
}

/// Sets it to true at the end.
struct Raise(watch::Sender<bool>);

impl Drop for Raise {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl Thread {
    /// Runs `work` with a runtime, at most until this is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start<F: Future>(
        name: &'static str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Thread> {
        Thread::with_runtime(name, runtime()?, work)
    }

    /// The same with a runtime that has been used before, for sockets.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn with_runtime<F: Future>(
        name: &'static str,
        runtime: Runtime,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> io::Result<Thread> {
        let (stop, stopped) = oneshot::channel::<()>();
        Thread::new(name, Box::new(stop), move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = work() => {}
                    _ = stopped => {}
                }
            });
            // What blocks, such as the look-up of a host name, cannot be cancelled, and is not waited for.
            runtime.shutdown_background();
        })
    }

    /// Runs `work`, which ends by itself once what it is given is true.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn until_done<F: Future>(
        name: &'static str,
        runtime: Runtime,
        work: impl FnOnce(watch::Receiver<bool>) -> F + Send + 'static,
    ) -> io::Result<Thread> {
        let (stop, stopped) = watch::channel(false);
        let body = move || drop(runtime.block_on(work(stopped)));
        Thread::new(name, Box::new(Raise(stop)), body)
    }

    /// Runs `work` without a runtime.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn blocking(
        name: &'static str,
        work: impl FnOnce(Stopped) + Send + 'static,
    ) -> io::Result<Thread> {
        let (stop, stopped) = mpsc::channel::<()>();
        Thread::new(name, Box::new(stop), move || work(Stopped(stopped)))
    }

    fn new(
        name: &'static str,
        stop: Box<dyn Send + Sync>,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<Thread> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        Ok(Thread { name, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!(thread = self.name, "a thread panicked");
        }
    }
}
