//! The public handles: [`Client`] sends requests, [`Events`] returns events, [`Delivery`] is the result of one
//! publication.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fulmar_mqtt::ReasonCode;
use fulmar_mqtt::packet::SubscribeOptions;
use fulmar_mqtt::topic::{Subscription, check_name};
use tokio::sync::{mpsc, oneshot};

use crate::dial::Dialer;
use crate::driver::Driver;
use crate::error::Error;
use crate::event_queue::{self, QueueReceiver};
use crate::inbox::{Control, Publication};
use crate::message::{Message, Receipt};
use crate::options::{Options, Streams};
use crate::url::{BrokerUrl, Transport};

/// Events and messages that may wait for the application before the client stops reading from the connection, and their
/// bytes.
pub(crate) const EVENTS: usize = 1024;
pub(crate) const MAX_EVENT_BYTES: usize = 8 << 20;

/// Commands that may wait for the task.
const COMMANDS: usize = 256;

/// A handle of one session; clones share it. When the last one is dropped, the client disconnects as with
/// [`Client::disconnect`].
#[derive(Clone, Debug)]
pub struct Client {
    publications: mpsc::Sender<Publication>,
    control: mpsc::Sender<Control>,
    /// Whether each filter gets its own SUBSCRIBE, so that each can have its own stream.
    separate_subscribes: bool,
}

/// Stream of the client's events, in order.
#[derive(Debug)]
pub struct Events {
    receiver: QueueReceiver<Event>,
}

/// Something that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The server has accepted a connection.
    Connected {
        /// Whether the server had kept the session.
        session_present: bool,
        /// The transport, which may be the fallback.
        transport: Transport,
        /// Whether CONNECT was in the first flight (QUIC's 0-RTT).
        early_data: bool,
        /// The address, which may be another one of a list, or one that a server has named.
        url: BrokerUrl,
    },
    /// The connection continues from another local address: the network changed or stopped responding, or
    /// [`Client::rebind`] was called. Only QUIC can do this.
    Migrated {
        /// The new address.
        local: SocketAddr,
    },
    /// The server has lost the session or a flow of it, so this many publications at QoS 2 are sent again as new: it
    /// is unknown whether the server had received them before, and if so, they arrive twice. A session that outlives
    /// its connection (`session_expiry_s` above 0) and a server that stores it make this rare.
    MayRepeat {
        /// The number of publications.
        messages: usize,
    },
    /// A message was received. It is acknowledged when the client has it, not when the application has, unless
    /// [`Options::acknowledge_by_hand`] is set.
    Message(Message),
    /// The connection was lost or could not be made.
    Disconnected {
        /// Why.
        reason: Error,
        /// When the client tries again; `None` if it does not.
        retry_in: Option<Duration>,
    },
}

/// Statistics of a connection's path at one moment, as its transport reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathStats {
    /// The transport, which may be the fallback.
    pub transport: Transport,
    /// Whether the server accepted CONNECT in the first flight (QUIC's 0-RTT).
    pub early_data: bool,
    /// Smoothed round-trip time; QUIC only, as everything below.
    pub rtt: Option<Duration>,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Datagrams sent again because packets are lost, see [`Options::copies`](crate::Options::copies).
    pub copies: u64,
    /// Bytes of UDP payload of copies.
    pub copied_bytes: u64,
    /// Bytes of UDP payload sent, without those of copies.
    pub sent_bytes: u64,
    /// Bytes of UDP payload received.
    pub received_bytes: u64,
    /// Bytes that may be in flight.
    pub congestion_window_bytes: u64,
    /// Number of times the connection has moved to another address.
    pub migrations: u32,
    /// The server's address.
    pub server: Option<SocketAddr>,
    /// Number of times the connection has moved to another address of the server, because it had become silent.
    pub server_moves: u32,
    /// Streams open beside the control stream.
    pub data_streams: usize,
}

impl PathStats {
    pub(crate) fn new(transport: Transport, early_data: bool) -> PathStats {
        PathStats {
            transport,
            early_data,
            rtt: None,
            lost_packets: 0,
            copies: 0,
            copied_bytes: 0,
            sent_bytes: 0,
            received_bytes: 0,
            congestion_window_bytes: 0,
            migrations: 0,
            server: None,
            server_moves: 0,
            data_streams: 0,
        }
    }
}

/// Resolves when the server has accepted a publication: at once when sent (QoS 0), at PUBACK (1), at PUBCOMP (2).
#[derive(Debug)]
#[must_use = "a failure is reported only if the future is awaited"]
pub struct Delivery {
    receiver: oneshot::Receiver<Result<ReasonCode, Error>>,
}

impl Future for Delivery {
    type Output = Result<ReasonCode, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let received = Pin::new(&mut self.receiver).poll(context);
        received.map(|result| result.unwrap_or(Err(Error::Closed)))
    }
}

impl Event {
    /// Bytes that count while it waits for the application.
    pub(crate) fn size(&self) -> usize {
        match self {
            Event::Message(message) => message.size(),
            _ => 0,
        }
    }
}

impl Events {
    /// The next event; `None` when the client is closed. Cancelling it loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }
}

impl Client {
    /// Starts a client on the current tokio runtime and returns before it is connected.
    ///
    /// # Errors
    /// The options cannot be used, or a certificate or key file cannot be read.
    pub fn connect(options: Options) -> Result<(Client, Events), Error> {
        options.check()?;
        let options = Arc::new(options);
        let dialer = Dialer::new(Arc::clone(&options))?;
        let separate_subscribes = options.streams != Streams::Single;
        let (publications, publications_out) = mpsc::channel(COMMANDS);
        let (control, control_out) = mpsc::channel(COMMANDS);
        let (events, receiver) = event_queue::bounded(EVENTS, MAX_EVENT_BYTES, Event::size);
        tokio::spawn(Driver::new(options, dialer, publications_out, control_out, events).run());
        Ok((Client { publications, control, separate_subscribes }, Events { receiver }))
    }

    /// Queues a message, connected or not; waits while the queue is full.
    ///
    /// # Errors
    /// The topic name is invalid, or the client is closed.
    pub async fn publish(&self, message: Message) -> Result<Delivery, Error> {
        check_name(&message.topic)
            .map_err(|source| Error::Topic { topic: message.topic.clone(), source })?;
        let (done, receiver) = oneshot::channel();
        self.publications.send((message, done)).await.map_err(|_| Error::Closed)?;
        Ok(Delivery { receiver })
    }

    /// Subscribes and waits for the answer: a reason code for each filter. If a server has lost the session, the
    /// client subscribes again.
    ///
    /// # Errors
    /// A filter is invalid, there are no filters, or the client is closed.
    pub async fn subscribe<F: AsRef<str>>(
        &self,
        filters: &[(F, SubscribeOptions)],
    ) -> Result<Vec<ReasonCode>, Error> {
        let filters: Vec<_> = filters
            .iter()
            .map(|(filter, options)| Ok((check_subscription(filter.as_ref())?, *options)))
            .collect::<Result<_, Error>>()?;
        self.request(filters, Control::Subscribe).await
    }

    /// Unsubscribes and waits for the answer: a reason code for each filter.
    ///
    /// # Errors
    /// As [`Client::subscribe`].
    pub async fn unsubscribe<F: AsRef<str>>(
        &self,
        filters: &[F],
    ) -> Result<Vec<ReasonCode>, Error> {
        let filters = filters.iter().map(|filter| check_subscription(filter.as_ref()));
        self.request(filters.collect::<Result<_, Error>>()?, Control::Unsubscribe).await
    }

    async fn request<T>(
        &self,
        all: Vec<T>,
        make: impl Fn(Vec<T>, oneshot::Sender<Result<Vec<ReasonCode>, Error>>) -> Control,
    ) -> Result<Vec<ReasonCode>, Error> {
        let requests = if self.separate_subscribes && !all.is_empty() {
            all.into_iter().map(|one| vec![one]).collect()
        } else {
            vec![all]
        };
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let (done, answer) = oneshot::channel();
            self.control.send(make(request, done)).await.map_err(|_| Error::Closed)?;
            answers.push(answer);
        }
        let mut codes = Vec::new();
        for answer in answers {
            codes.extend(answer.await.unwrap_or(Err(Error::Closed))?);
        }
        Ok(codes)
    }

    /// Acknowledges a message that has a receipt. After the end of its connection, this does nothing: the
    /// server sends the message again.
    pub async fn acknowledge(&self, receipt: Receipt) {
        // After a client is closed, there is no connection for the acknowledgement.
        drop(self.control.send(Control::Acknowledge(receipt)).await);
    }

    /// The connection's statistics; `None` without a connection.
    pub async fn path_stats(&self) -> Option<PathStats> {
        let (request, answer) = oneshot::channel();
        self.control.send(Control::Stats(request)).await.ok()?;
        answer.await.ok().flatten()
    }

    /// Moves QUIC to a new UDP socket; the connection continues. The client does so by itself when this machine's
    /// address changes or the server is silent; an application that knows earlier may call this. It has no effect on
    /// other transports.
    pub async fn rebind(&self) {
        // A closed client has no socket to move.
        drop(self.control.send(Control::Rebind).await);
    }

    /// Disconnects normally: queued messages are delivered first, for at most the options'
    /// `drain_timeout`.
    pub async fn disconnect(&self) {
        let (done, ended) = oneshot::channel();
        if self.control.send(Control::Disconnect(done)).await.is_ok() {
            // The other end is dropped when the client has ended.
            drop(ended.await);
        }
    }
}

fn check_subscription(filter: &str) -> Result<String, Error> {
    let wrong = |source| Error::Topic { topic: filter.to_owned(), source };
    Subscription::parse(filter).map_err(wrong)?;
    Ok(filter.to_owned())
}
