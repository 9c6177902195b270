//! A publisher and a subscriber with a list of all nodes, on a thread of their own, and what each has seen.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use fulmar_client::{Backoff, Client, Event, Message, Options, QoS, SubscribeOptions};
use tokio::sync::Notify;

const TOPIC: &str = "demo/cluster";
const SESSION_S: u32 = 3600;
const KEEP_ALIVE_S: u16 = 5;
/// For the subscription.
const PATIENCE: Duration = Duration::from_secs(60);
/// After a round of the list without a connection.
const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_millis(500) };

/// Observations of one message.
#[derive(Clone, Copy, Default)]
struct MessageState {
    acknowledged: bool,
    received: bool,
}

/// Numbers of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) sent: usize,
    pub(super) acknowledged: usize,
    /// Different ones.
    pub(super) received: usize,
    /// Acknowledged and not received.
    pub(super) lost: usize,
}

#[derive(Default)]
struct Record {
    /// By number.
    messages: Vec<MessageState>,
    acknowledged_at: Option<Instant>,
}

impl Record {
    fn totals(&self) -> Totals {
        let count = |which: fn(&&MessageState) -> bool| self.messages.iter().filter(which).count();
        Totals {
            sent: self.messages.len(),
            acknowledged: count(|seen| seen.acknowledged),
            received: count(|seen| seen.received),
            lost: count(|seen| seen.acknowledged && !seen.received),
        }
    }
}

#[derive(Default)]
struct Shared {
    record: Mutex<Record>,
    /// Nothing more is to be published.
    ending: AtomicBool,
    /// The clients are to end.
    ended: Notify,
}

impl Shared {
    fn note(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Running clients.
pub(super) struct Traffic {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Traffic {
    /// Starts the clients, and returns when the subscriber has subscribed.
    pub(super) fn start(url: &str, rate: u32) -> anyhow::Result<Traffic> {
        let options = |name: &str| -> anyhow::Result<Options> {
            Ok(Options {
                client_id: format!("demo-{name}"),
                session_expiry_s: SESSION_S,
                keep_alive_s: KEEP_ALIVE_S,
                reconnect: Some(BACKOFF),
                ..Options::new(url)?
            })
        };
        let (subscriber, publisher) = (options("subscriber")?, options("publisher")?);
        let shared = Arc::new(Shared::default());
        let (subscribed, wait) = channel();
        let for_thread = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new().name("demo-clients".into());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = exchange(subscriber, publisher, rate, Arc::clone(&for_thread), subscribed) => {}
                    () = for_thread.ended.notified() => {}
                }
            });
        })?;
        let traffic = Traffic { shared, thread: Some(thread) };
        let answer = wait.recv_timeout(PATIENCE).context("the subscriber has no answer")?;
        answer.map_err(|error| anyhow!("the subscriber: {error}"))?;
        Ok(traffic)
    }

    pub(super) fn totals(&self) -> Totals {
        self.shared.record.lock().unwrap_or_else(PoisonError::into_inner).totals()
    }

    /// When a message was acknowledged last, if that was after `since`.
    pub(super) fn acknowledged_after(&self, since: Instant) -> Option<Instant> {
        let record = self.shared.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.acknowledged_at.filter(|at| *at > since)
    }

    /// Publishes nothing more, and waits until everything is acknowledged and received, at most `patience`; `look` is
    /// called now and then.
    pub(super) fn finish(
        self,
        patience: Duration,
        look: &mut dyn FnMut() -> anyhow::Result<()>,
    ) -> anyhow::Result<Totals> {
        self.shared.ending.store(true, Ordering::Relaxed);
        let end = Instant::now() + patience;
        loop {
            let totals = self.totals();
            let all = totals.acknowledged == totals.sent && totals.received == totals.sent;
            if all || Instant::now() > end {
                return Ok(totals);
            }
            look()?;
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.shared.ended.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has panicked if this is an error, which was printed.
            thread.join().ok();
        }
    }
}

/// Runs both clients.
async fn exchange(
    subscriber: Options,
    publisher: Options,
    rate: u32,
    shared: Arc<Shared>,
    subscribed: Sender<Result<(), fulmar_client::Error>>,
) {
    let connect = || Ok((Client::connect(subscriber)?, Client::connect(publisher)?));
    let ((subscriber, mut events), (publisher, mut others)) = match connect() {
        Ok(connected) => connected,
        Err(error) => return drop(subscribed.send(Err(error))),
    };
    tokio::spawn(async move { while others.next().await.is_some() {} });
    let receiving = Arc::clone(&shared);
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            let Event::Message(message) = event else { continue };
            let number =
                std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse().ok());
            receiving.note(|record| {
                let seen = number.and_then(|number: usize| record.messages.get_mut(number));
                if let Some(seen) = seen {
                    seen.received = true;
                }
            });
        }
    });
    let qos1 = SubscribeOptions { qos: QoS::AtLeastOnce, ..SubscribeOptions::default() };
    let answer = subscriber.subscribe(&[(TOPIC, qos1)]).await;
    drop(subscribed.send(answer.map(drop)));
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
    loop {
        ticks.tick().await;
        if !shared.ending.load(Ordering::Relaxed) {
            publish(&publisher, &shared).await;
        }
    }
}

/// Publishes the next message. Waits for room in the client's queue, not for the acknowledgement.
async fn publish(publisher: &Client, shared: &Arc<Shared>) {
    let mut number = 0;
    shared.note(|record| {
        number = record.messages.len();
        record.messages.push(MessageState::default());
    });
    let message = Message::new(TOPIC, number.to_string()).qos1();
    let Ok(delivery) = publisher.publish(message).await else { return };
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if delivery.await.is_ok_and(|reason| !reason.is_error()) {
            shared.note(|record| {
                record.messages[number].acknowledged = true;
                record.acknowledged_at = Some(Instant::now());
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_acknowledged_and_not_received_is_lost() {
        let seen = |acknowledged, received| MessageState { acknowledged, received };
        let messages =
            vec![seen(true, true), seen(true, false), seen(false, true), MessageState::default()];
        let record = Record { messages, acknowledged_at: None };
        let totals = Totals { sent: 4, acknowledged: 2, received: 2, lost: 1 };
        assert_eq!(record.totals(), totals);
    }
}
