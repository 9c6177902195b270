//! Events between workers: one mailbox per worker, one wake-up per batch.
//!
//! A worker that is awake checks its mailbox before it sleeps, so only a sleeping worker is woken. No wake-up can be
//! lost: the sleeping worker sets the flag `asleep` and then checks the queue, and the sender adds to the queue and
//! then reads the flag.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::auth::AuthReply;
use crate::peer::Token;

/// An event that one worker sends about another worker's connection.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// Its session has output.
    Ready(Token),
    /// Its client connected again elsewhere.
    TakenOver(Token),
    /// Flows of its session may have expired.
    Expired(Token),
    /// Its session's queue overflowed and the policy is to disconnect.
    Overflowed(Token),
    /// An operator or the broker wants it closed with this reason.
    Close(Token, CloseOrder),
    /// Credentials or rights of external users have changed.
    Recheck(Token),
    /// A slow authentication has been decided.
    Authenticated(Token, AuthReply),
}

/// Why the broker closes a connection of its own accord.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOrder {
    /// The server is shutting down (0x8B).
    ShuttingDown,
    /// An operator's decision (0x98).
    Administrative,
}

type Wake = Box<dyn Fn() + Send + Sync>;

/// One worker's mailbox.
#[derive(Default)]
pub(crate) struct Mailbox {
    queue: Mutex<Vec<WorkerEvent>>,
    asleep: AtomicBool,
    wake: OnceLock<Wake>,
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").field("asleep", &self.asleep).finish_non_exhaustive()
    }
}

impl Mailbox {
    /// Sets how its worker is woken; the first call counts.
    pub(crate) fn set_wake(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }

    /// Hands over a batch and wakes the worker if it sleeps.
    pub(crate) fn post(&self, batch: &mut Vec<WorkerEvent>) {
        if batch.is_empty() {
            return;
        }
        self.queue.lock().append(batch);
        self.wake();
    }

    /// Hands over one event and wakes the worker if it sleeps.
    pub(crate) fn post_one(&self, event: WorkerEvent) {
        self.queue.lock().push(event);
        self.wake();
    }

    /// Wakes the worker if it sleeps.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(wake) = self.wake.get()
        {
            wake();
        }
    }

    /// Takes everything, swapping in `into`, which should be empty.
    pub(crate) fn take(&self, into: &mut Vec<WorkerEvent>) {
        std::mem::swap(&mut *self.queue.lock(), into);
    }

    pub(crate) fn has_events(&self) -> bool {
        !self.queue.lock().is_empty()
    }

    /// The worker is about to sleep; false if an event has arrived meanwhile.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.queue.lock().is_empty() {
            return true;
        }
        self.asleep.store(false, Ordering::SeqCst);
        false
    }

    /// The worker is awake.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }
}
