//! A queue to the application that is bounded by number and by bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc};

/// Creates a queue for `items`, which may have `bytes` by `size`; the last may exceed them.
pub(crate) fn bounded<T>(
    items: usize,
    bytes: usize,
    size: fn(&T) -> usize,
) -> (QueueSender<T>, QueueReceiver<T>) {
    let (sender, receiver) = mpsc::channel(items);
    let held = Arc::new(QueuedBytes { bytes: AtomicUsize::new(0), removed: Notify::new() });
    let queue = QueueSender { items: sender, held: Arc::clone(&held), max_bytes: bytes, size };
    (queue, QueueReceiver { items: receiver, held, size })
}

#[derive(Debug)]
struct QueuedBytes {
    bytes: AtomicUsize,
    /// Notified when the receiver has removed an item.
    removed: Notify,
}

#[derive(Debug)]
pub(crate) struct QueueSender<T> {
    items: mpsc::Sender<T>,
    held: Arc<QueuedBytes>,
    max_bytes: usize,
    size: fn(&T) -> usize,
}

#[derive(Debug)]
pub(crate) struct QueueReceiver<T> {
    items: mpsc::Receiver<T>,
    held: Arc<QueuedBytes>,
    size: fn(&T) -> usize,
}

impl<T> QueueSender<T> {
    /// Sends as many of these as fit, at least one; drops all of them if the application has dropped the receiver.
    /// Nothing is lost if the future is dropped.
    pub(crate) async fn send_from(&self, backlog: &mut VecDeque<T>) {
        while !self.has_room() && !self.items.is_closed() {
            tokio::select! {
                () = self.held.removed.notified() => {}
                () = self.items.closed() => {}
            }
        }
        let Ok(permit) = self.items.reserve().await else {
            backlog.clear();
            return;
        };
        self.send_one(permit, backlog);
        while self.has_room()
            && !backlog.is_empty()
            && let Ok(permit) = self.items.try_reserve()
        {
            self.send_one(permit, backlog);
        }
    }

    fn has_room(&self) -> bool {
        self.held.bytes.load(Ordering::Acquire) < self.max_bytes
    }

    fn send_one(&self, permit: mpsc::Permit<'_, T>, backlog: &mut VecDeque<T>) {
        if let Some(item) = backlog.pop_front() {
            self.held.bytes.fetch_add((self.size)(&item), Ordering::AcqRel);
            permit.send(item);
        }
    }
}

impl<T> QueueReceiver<T> {
    /// The next item; `None` when the sender is gone. Nothing is lost if the future is dropped.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        let item = self.items.recv().await?;
        self.held.bytes.fetch_sub((self.size)(&item), Ordering::AcqRel);
        // The permit is kept if the sender does not wait yet.
        self.held.removed.notify_one();
        Some(item)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    /// The future's result, if it has one now.
    async fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn items_wait_for_room_in_bytes() {
        let (sender, mut receiver) = bounded(100, 10, Vec::<u8>::len);
        let mut backlog: VecDeque<Vec<u8>> = (0..5).map(|_| vec![0; 6]).collect();
        sender.send_from(&mut backlog).await;
        assert_eq!(backlog.len(), 3, "the second exceeds it");
        assert!(now(sender.send_from(&mut backlog)).await.is_none());
        receiver.recv().await.unwrap();
        now(sender.send_from(&mut backlog)).await.unwrap();
        assert_eq!(backlog.len(), 2);
        for _ in 0..2 {
            receiver.recv().await.unwrap();
        }
        now(sender.send_from(&mut backlog)).await.unwrap();
        assert!(backlog.is_empty());
    }

    #[tokio::test]
    async fn nobody_waits_for_a_receiver_that_is_gone() {
        let (sender, receiver) = bounded(100, 10, Vec::<u8>::len);
        let mut backlog: VecDeque<Vec<u8>> = (0..5).map(|_| vec![0; 20]).collect();
        sender.send_from(&mut backlog).await;
        drop(receiver);
        now(sender.send_from(&mut backlog)).await.unwrap();
        assert!(backlog.is_empty());
    }
}
