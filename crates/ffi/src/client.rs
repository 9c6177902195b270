//! A client for C: its requests, and the queue of events that it takes from.
//!
//! Events and results go through one bounded queue. When the application takes none, the client stops reading from its
//! connection, and new requests whose result is wanted are refused.

use std::collections::HashMap;
use std::ffi::c_int;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fulmar_client::{
    Client, Error, Event, Events, Message, Options, PathStats, ReasonCode, Receipt,
};
use fulmar_mqtt::packet::SubscribeOptions;
use parking_lot::Mutex;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::event::{FulmarEvent, Item, PUBLISHED, Pointees, SUBSCRIBED, UNSUBSCRIBED};
use crate::failure::{BUSY, Failure, TIMEOUT};

/// Events that wait for the application here; more wait in the client.
const EVENTS: usize = 64;

/// Requests whose result the application has not taken.
const MAX_RESULTS: usize = 1 << 16;

/// Longest wait for the statistics of a path.
const STATS_TIMEOUT: Duration = Duration::from_secs(5);

/// A client's handle.
pub(crate) struct Handle {
    /// `None` once it is closed.
    live: Mutex<Option<Live>>,
    taken: Mutex<EventReader>,
    /// Receipts of this connection that the application has not used.
    receipts: Mutex<HashMap<u64, Receipt>>,
    queue: Arc<Queue>,
    last_receipt: AtomicU64,
    readable: UnixStream,
}

#[derive(Clone)]
struct Live {
    client: Client,
    /// Closed with the last event, unless a result is still to come.
    items: mpsc::WeakSender<Item>,
    events: AbortHandle,
}

/// State of the thread that takes events: one at a time.
struct EventReader {
    items: mpsc::Receiver<Item>,
    pointees: Pointees,
}

/// State that the tasks of a client share.
struct Queue {
    /// A byte in this socket says that events wait.
    writable: UnixStream,
    /// Requests whose result was not taken.
    results: AtomicUsize,
}

impl Queue {
    fn signal(&self) {
        // A full socket can be read already.
        let _ = (&self.writable).write(&[1]);
    }
}

/// The one thread of all clients.
fn runtime() -> Result<&'static Runtime, Failure> {
    static RUNTIME: OnceLock<Result<Arc<Runtime>, String>> = OnceLock::new();
    let start = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Arc::new(runtime.map_err(|error| format!("no event loop: {error}"))?);
        let driven = Arc::clone(&runtime);
        let thread = std::thread::Builder::new().name("libfulmar".into());
        let drive = move || {
            block_sigpipe();
            driven.block_on(std::future::pending::<()>());
        };
        thread.spawn(drive).map_err(|error| format!("no thread: {error}"))?;
        Ok(runtime)
    };
    RUNTIME.get_or_init(start).as_deref().map_err(Failure::from_error)
}

/// Writing to a connection that the server has closed is an error, and ends no program. Of this thread alone, which writes to
/// all of them: the rest of the process is the application's.
fn block_sigpipe() {
    // SAFETY: the set is initialised before it is used, and lives as long.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
}

/// Waits for a result, as long as the application wants.
fn wait<T>(timeout: Option<Duration>, work: impl Future<Output = T>) -> Result<Option<T>, Failure> {
    runtime()?.handle().block_on(async {
        match timeout {
            None => Ok(Some(work.await)),
            Some(timeout) => Ok(tokio::time::timeout(timeout, work).await.ok()),
        }
    })
}

async fn forward(mut events: Events, items: mpsc::Sender<Item>, queue: Arc<Queue>) {
    while let Some(event) = events.next().await {
        if items.send(Item::Event(event)).await.is_err() {
            return;
        }
        queue.signal();
    }
    drop(items);
    queue.signal();
}

impl Handle {
    /// Starts a client.
    pub(crate) fn start(options: Options) -> Result<Arc<Handle>, Failure> {
        let runtime = runtime()?;
        let (readable, writable) = UnixStream::pair().map_err(Failure::from_error)?;
        for end in [&readable, &writable] {
            end.set_nonblocking(true).map_err(Failure::from_error)?;
        }
        let (items, taken) = mpsc::channel(EVENTS);
        let queue = Arc::new(Queue { writable, results: AtomicUsize::new(0) });
        let entered = runtime.enter();
        let (client, events) = Client::connect(options)?;
        drop(entered);
        let weak = items.downgrade();
        let task = runtime.spawn(forward(events, items, Arc::clone(&queue)));
        let live = Live { client, items: weak, events: task.abort_handle() };
        let taken = EventReader { items: taken, pointees: Pointees::default() };
        Ok(Arc::new(Handle {
            live: Mutex::new(Some(live)),
            taken: Mutex::new(taken),
            receipts: Mutex::default(),
            queue,
            last_receipt: AtomicU64::new(0),
            readable,
        }))
    }

    fn live(&self) -> Result<Live, Failure> {
        self.live.lock().clone().ok_or_else(Failure::closed)
    }

    /// Publishes; with a token, the result becomes an event.
    pub(crate) fn publish(
        &self,
        message: Message,
        token: u64,
        timeout: Option<Duration>,
    ) -> Result<(), Failure> {
        let live = self.live()?;
        if token != 0 && self.queue.results.load(Ordering::Relaxed) >= MAX_RESULTS {
            return Err(Failure::new(
                TIMEOUT,
                format!(
                    "{MAX_RESULTS} results wait: take events (fulmar_next), or publish with token 0"
                ),
            ));
        }
        let sent = wait(timeout, live.client.publish(message))?;
        let full =
            || Failure::new(TIMEOUT, "the client's queue is full, and the broker takes nothing");
        let delivery = sent.ok_or_else(full)??;
        if token != 0 {
            self.report(&live, PUBLISHED, token, delivery)?;
        }
        Ok(())
    }

    /// Subscribes; with a token, the result becomes an event.
    pub(crate) fn subscribe(
        &self,
        filter: String,
        options: SubscribeOptions,
        token: u64,
    ) -> Result<(), Failure> {
        let live = self.live()?;
        let client = live.client.clone();
        let work = async move { first(client.subscribe(&[(filter, options)]).await) };
        self.report(&live, SUBSCRIBED, token, work)
    }

    /// Unsubscribes; with a token, the result becomes an event.
    pub(crate) fn unsubscribe(&self, filter: String, token: u64) -> Result<(), Failure> {
        let live = self.live()?;
        let client = live.client.clone();
        let work = async move { first(client.unsubscribe(&[filter]).await) };
        self.report(&live, UNSUBSCRIBED, token, work)
    }

    fn report(
        &self,
        live: &Live,
        kind: u32,
        token: u64,
        result: impl Future<Output = Result<ReasonCode, Error>> + Send + 'static,
    ) -> Result<(), Failure> {
        let items = live.items.upgrade().ok_or_else(Failure::closed)?;
        let queue = Arc::clone(&self.queue);
        queue.results.fetch_add(1, Ordering::Relaxed);
        runtime()?.spawn(async move {
            let result = result.await;
            if token != 0 {
                // Nobody takes it any more.
                let _ = items.send(Item::Result { kind, token, result }).await;
            }
            // Before the signal: this may have been what kept the queue open.
            drop(items);
            queue.results.fetch_sub(1, Ordering::Relaxed);
            queue.signal();
        });
        Ok(())
    }

    /// Takes the next event; false if there is none in time.
    pub(crate) fn next(
        &self,
        event: &mut FulmarEvent,
        timeout: Option<Duration>,
    ) -> Result<bool, Failure> {
        let busy = || Failure::new(BUSY, "another thread is in fulmar_next with this client");
        let mut taken = self.taken.try_lock().ok_or_else(busy)?;
        let taken = &mut *taken;
        // Before the queue is looked at: what comes afterwards writes again.
        let mut bytes = [0; 2 * EVENTS];
        let _ = (&self.readable).read(&mut bytes);
        let item = match taken.items.try_recv() {
            Ok(item) => Some(item),
            Err(_) if timeout == Some(Duration::ZERO) && !taken.items.is_closed() => None,
            Err(_) => match wait(timeout, taken.items.recv())? {
                Some(None) => return Err(Failure::closed()),
                item => item.flatten(),
            },
        };
        if !taken.items.is_empty() || taken.items.is_closed() {
            self.queue.signal();
        }
        let Some(mut item) = item else { return Ok(false) };
        let mut number = 0;
        if let Item::Event(Event::Message(message)) = &mut item
            && let Some(receipt) = message.receipt.take()
        {
            number = self.last_receipt.fetch_add(1, Ordering::Relaxed) + 1;
            self.receipts.lock().insert(number, receipt);
        }
        if let Item::Event(Event::Connected { .. }) = &item {
            // Of the connection before: the server sends their messages again.
            self.receipts.lock().clear();
        }
        *event = taken.pointees.event_for_c(item, number);
        Ok(true)
    }

    /// The file descriptor that can be read while events wait.
    pub(crate) fn event_fd(&self) -> c_int {
        self.readable.as_raw_fd()
    }

    /// Acknowledges the message with this receipt.
    pub(crate) fn acknowledge(&self, receipt: u64) -> Result<(), Failure> {
        let live = self.live()?;
        let found = self.receipts.lock().remove(&receipt);
        // Not that of an earlier connection.
        if let Some(receipt) = found {
            wait(None, live.client.acknowledge(receipt))?;
        }
        Ok(())
    }

    pub(crate) fn network_changed(&self) -> Result<(), Failure> {
        let client = self.live()?.client;
        runtime()?.spawn(async move { client.rebind().await });
        Ok(())
    }

    pub(crate) fn path(&self) -> Result<PathStats, Failure> {
        let stats = wait(Some(STATS_TIMEOUT), self.live()?.client.path_stats())?;
        stats.flatten().ok_or_else(|| Failure::new(TIMEOUT, "the client is not connected"))
    }

    pub(crate) fn disconnect(&self, timeout: Option<Duration>) -> Result<(), Failure> {
        let live = self.live.lock().take().ok_or_else(Failure::closed)?;
        let ended = wait(timeout, live.client.disconnect())?;
        ended.ok_or_else(|| Failure::new(TIMEOUT, "not everything was delivered in time"))
    }

    /// Ends the client as its handle is freed: what is queued is still delivered, for at most the drain timeout. Requests
    /// that wait for the server end with it.
    pub(crate) fn close(&self) {
        if let Some(live) = self.live.lock().take() {
            live.events.abort();
            if let Ok(runtime) = runtime() {
                runtime.spawn(async move { live.client.disconnect().await });
            }
        }
    }
}

/// The reason code of the only filter.
fn first(codes: Result<Vec<ReasonCode>, Error>) -> Result<ReasonCode, Error> {
    codes.map(|codes| codes.first().copied().unwrap_or(ReasonCode::UnspecifiedError))
}
