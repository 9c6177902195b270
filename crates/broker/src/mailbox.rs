//! Events between workers: one mailbox per worker, one wake-up per batch.
//!
//! A worker that is awake checks its mailbox before it sleeps, so only a sleeping worker is woken. No wake-up can be
//! lost: the sleeping worker sets the flag `asleep` and then checks the queue, and the sender adds to the queue and
//! then reads the flag.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::event::BrokerEvent;
use crate::peer::Token;

/// A session's connection, and the worker that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) shard: u16,
    pub(crate) token: Token,
}

/// An event, and the connection that gets it.
pub(crate) type Addressed = (Token, BrokerEvent);

type Wake = Box<dyn Fn() + Send + Sync>;

/// One worker's mailbox.
#[derive(Default)]
pub(crate) struct Mailbox {
    queue: Mutex<Vec<Addressed>>,
    asleep: AtomicBool,
    wake: OnceLock<Wake>,
}

fulmar_text::opaque_debug!(Mailbox { asleep });

impl Mailbox {
    /// Sets how its worker is woken; the first call counts.
    pub(crate) fn set_wake(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }

    /// Hands over a batch and wakes the worker if it sleeps.
    pub(crate) fn post(&self, batch: &mut Vec<Addressed>) {
        if batch.is_empty() {
            return;
        }
        self.queue.lock().append(batch);
        self.wake();
    }

    /// Hands over one event and wakes the worker if it sleeps.
    fn post_one(&self, event: Addressed) {
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

    /// Appends everything to `out`.
    pub(crate) fn drain_into(&self, out: &mut Vec<Addressed>) {
        out.append(&mut self.queue.lock());
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

/// The mailboxes of all workers.
#[derive(Clone, Debug)]
pub(crate) struct Mailboxes(Arc<[Mailbox]>);

impl Mailboxes {
    pub(crate) fn new(workers: usize) -> Mailboxes {
        Mailboxes((0..workers).map(|_| Mailbox::default()).collect())
    }

    /// Hands an event to the worker of this connection.
    pub(crate) fn post(&self, at: Attachment, event: BrokerEvent) {
        self.0[usize::from(at.shard)].post_one((at.token, event));
    }

    /// Wakes the workers that sleep.
    pub(crate) fn wake_all(&self) {
        self.0.iter().for_each(Mailbox::wake);
    }
}

impl Deref for Mailboxes {
    type Target = [Mailbox];

    fn deref(&self) -> &[Mailbox] {
        &self.0
    }
}
