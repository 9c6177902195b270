//! A client's task: moves bytes between a connection and the session machine, reconnects when the connection is lost,
//! receives commands and returns events.
//!
//! It never waits for the application while the server waits for it: events that do not fit go to a backlog, during
//! which nothing more is read. Nothing is read either while the server does not read what it is answered. The machine
//! makes all decisions of the protocol.

mod moving;

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use fulmar_mqtt::QoS;
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, sleep_until, timeout};

use crate::addresses::{Addresses, Ended, Next};
use crate::api::{Event, PathStats};
use crate::dial::{Dialer, Dialled, Rival, ServerConnection};
use crate::error::Error;
use crate::event_queue::QueueSender;
use crate::inbox::{Answered, Command, Control, Inbox, Publication, Published};
use crate::machine::{CONTROL, MAX_OUT_BYTES, Machine, Outcome};
use crate::message::Message;
use crate::network::Monitor;
use crate::options::{Options, Streams};
use crate::pending::{after_sockets, answer, answer_all, changed, lost, or_never};
use crate::quic::{Change, QuicConnection};
use crate::streams::{DataStreams, Happened};
use crate::url::Transport;
pub(crate) use moving::Candidate;
use moving::Moving;

/// The interval at which a QUIC connection is checked for silence.
const LOOK: Duration = Duration::from_secs(5);

/// Room for one read, in bytes, and the most of one: each read may cause as many bytes of acknowledgements.
const READ_BYTES: usize = 16 * 1024;
const MAX_READ_BYTES: usize = 64 * 1024;

/// Stands for "no deadline".
const FAR: Duration = Duration::from_secs(24 * 3600);

/// Time for a last packet on a connection that is being given up.
const FAREWELL: Duration = Duration::from_millis(500);

/// Publications accepted in one turn, to be written together.
const BATCH: usize = 256;

pub(crate) struct Driver {
    options: Arc<Options>,
    dialer: Arc<Dialer>,
    addresses: Addresses,
    /// When the server accepted the connection.
    up_at: Option<Instant>,
    network: Monitor,
    machine: Machine<Published, Answered>,
    inbox: Inbox,
    events: QueueSender<Event>,
    backlog: VecDeque<Event>,
    /// The connection's transport.
    transport: Transport,
    /// Whether the server accepted this connection's early data.
    early_data: bool,
    /// Whether the loop, which has the connection, is to move it to a new socket.
    rebind_wanted: bool,
    stats_wanted: Vec<oneshot::Sender<Option<PathStats>>>,
    /// Tasks that wait for the end.
    ended: Vec<oneshot::Sender<()>>,
    /// When to stop waiting for deliveries; set when the client is to be closed.
    drain_by: Option<Instant>,
    /// Whether the end waits until the server has everything: nothing else answers messages at QoS 0, nor the DISCONNECT
    /// that a will or a session depends on.
    must_arrive: bool,
}

/// A connection while it is served, with its state.
struct Served {
    conn: ServerConnection,
    /// Whether early data is accepted, until it is known.
    early: Option<quinn::ZeroRttAccepted>,
    streams: DataStreams,
    /// Bytes received on the control stream and not parsed yet.
    input: BytesMut,
    /// Whether the writer holds unflushed bytes.
    unflushed: bool,
    /// When to check for silence next.
    look_at: Instant,
    moving: Moving,
    /// When the connection is given up, unless it is up by then.
    answer_by: Instant,
}

/// Why a turn of the loop was woken.
enum Wake {
    EarlyData(bool),
    Read(std::io::Result<usize>),
    Wrote(std::io::Result<usize>),
    Stream(Happened),
    /// The other transport was answered first, or has failed.
    Rival(Box<Result<ServerConnection, Error>>),
    Path(Change),
    /// The addresses at which a silent server may be.
    Places(Vec<Candidate>),
    /// The network of this machine changed.
    Network,
    Command(Command),
    /// There is room for events again.
    Room,
    Time,
}

impl Driver {
    pub(crate) fn new(
        options: Arc<Options>,
        dialer: Dialer,
        publications: mpsc::Receiver<Publication>,
        control: mpsc::Receiver<Control>,
        events: QueueSender<Event>,
    ) -> Driver {
        let has_session = !options.clean_start || options.session_expiry_s > 0;
        let must_arrive = options.will.is_some() || has_session;
        Driver {
            machine: Machine::new(Arc::clone(&options), Instant::now()),
            dialer: Arc::new(dialer),
            addresses: Addresses::new(&options),
            up_at: None,
            network: Monitor::new(),
            inbox: Inbox { publications, control, open: true },
            events,
            backlog: VecDeque::new(),
            transport: options.url.transport,
            early_data: false,
            rebind_wanted: false,
            stats_wanted: Vec::new(),
            ended: Vec::new(),
            drain_by: None,
            must_arrive,
            options,
        }
    }

    /// Runs until the client is closed or an error is permanent.
    pub(crate) async fn run(mut self) {
        let mut failures = 0;
        while let Some(mut error) = self.attempt().await {
            let url = self.addresses.current().to_string();
            error.set_server(&url);
            let lasted = self.up_at.map(|at| at.elapsed());
            let reference = self.machine.take_reference();
            let ended = Ended { error: &error, reference: reference.as_deref(), lasted };
            let permanent = error.is_permanent();
            if !permanent && self.addresses.next(ended) == Next::AtOnce {
                tracing::debug!(url, %error, next = %self.addresses.current(), "not connected");
                continue;
            }
            failures = if lasted.is_some() { 1 } else { failures + 1 };
            let backoff = self.options.reconnect.filter(|_| !permanent);
            let retry_in = backoff.map(|backoff| backoff.wait(failures));
            tracing::debug!(url, %error, ?retry_in, "not connected");
            if lasted.is_none() && !permanent {
                error = error.after(self.addresses.count());
            }
            let event = Event::Disconnected { reason: error.clone(), retry_in };
            self.backlog.push_back(event);
            let Some(wait) = retry_in else {
                self.machine.abandon(&error);
                break;
            };
            if self.meanwhile(sleep(wait)).await.is_none() {
                break;
            }
        }
        self.machine.abandon(&Error::Closed);
        self.settle();
        // An application that waits for the end may take the events afterwards.
        self.ended.clear();
        while !self.backlog.is_empty() {
            self.events.send_from(&mut self.backlog).await;
        }
    }

    fn patience(&self) -> Duration {
        self.addresses.patience(self.options.connect_timeout)
    }

    /// One connection from dialling to its end, which is the error; `None` when the client is closed.
    async fn attempt(&mut self) -> Option<Error> {
        let (dialer, url) = (Arc::clone(&self.dialer), self.addresses.current().clone());
        self.up_at = None;
        let limit = self.patience();
        let dial = async move { dialer.dial_within(limit, &url).await };
        let Dialled { mut conn, mut rival } = match self.meanwhile(dial).await? {
            Some(Ok(dialled)) => dialled,
            Some(Err(error)) => return Some(error),
            None => return Some(self.no_answer()),
        };
        loop {
            let outcome = self.serve(conn, &mut rival).await;
            let was_up = self.machine.is_up();
            self.machine.disconnected();
            self.settle();
            let failed = match outcome {
                Ok(None) => return None,
                Ok(Some(winner)) => {
                    conn = winner;
                    continue;
                }
                Err(error) => error,
            };
            // If early data was not accepted, the other transport still gets its full time.
            let Some(other) = rival.take().filter(|_| !was_up) else {
                return Some(failed);
            };
            match self.meanwhile(timeout(limit, other)).await? {
                Ok(Ok(winner)) => conn = winner,
                _ => return Some(failed),
            }
            self.dialer.won(conn.transport);
        }
    }

    fn no_answer(&self) -> Error {
        let next = match self.options.url.transport {
            Transport::Quic => {
                "is a broker listening there? If UDP is blocked, try --fallback or mqtts://; or the \
                 link is slow or loses packets"
            }
            _ => "check host, port and scheme",
        };
        let reason = format!("no answer within {} s; {next}", self.patience().as_secs_f32());
        Error::Dial { url: self.addresses.current().to_string(), reason }
    }

    /// Awaits `future` while receiving commands and returning events; `None` when the client is to be closed and a
    /// connection could not deliver anything any more.
    async fn meanwhile<F: Future>(&mut self, future: F) -> Option<F::Output> {
        tokio::pin!(future);
        loop {
            // There is no connection.
            self.rebind_wanted = false;
            answer_all(&mut self.stats_wanted, None);
            let over = self.drain_by.is_some_and(|by| by <= Instant::now());
            if over || (self.drain_by.is_some() && self.machine.is_idle()) {
                return None;
            }
            let drain_by = self.drain_by.unwrap_or_else(|| Instant::now() + FAR);
            tokio::select! {
                output = &mut future => return Some(output),
                command = self.inbox.next(self.machine.has_room()) => self.command(command),
                () = self.events.send_from(&mut self.backlog), if !self.backlog.is_empty() => {}
                () = sleep_until(drain_by.into()) => {}
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Publish((message, done)) => {
                self.publish(message, done);
                self.take_publications(BATCH);
            }
            Command::Control(Control::Subscribe(filters, done)) => {
                self.must_arrive = true;
                self.machine.subscribe(filters, done);
            }
            Command::Control(Control::Unsubscribe(filters, done)) => {
                self.machine.unsubscribe(filters, done);
            }
            Command::Control(Control::Acknowledge(receipt)) => self.machine.acknowledge(&receipt),
            Command::Control(Control::Rebind) => self.rebind_wanted = true,
            Command::Control(Control::Stats(ask)) => self.stats_wanted.push(ask),
            Command::Control(Control::Disconnect(done)) => {
                self.ended.push(done);
                self.close();
            }
            Command::End => self.close(),
        }
    }

    fn publish(&mut self, message: Message, done: Published) {
        self.must_arrive |= message.qos == QoS::AtMostOnce;
        self.machine.publish(message, done);
    }

    fn take_publications(&mut self, most: usize) {
        for _ in 0..most {
            if !self.machine.has_room() {
                return;
            }
            let Ok((message, done)) = self.inbox.publications.try_recv() else { return };
            self.publish(message, done);
        }
    }

    fn close(&mut self) {
        // Earlier publications come first, with or without room: the channel is bounded.
        while let Ok((message, done)) = self.inbox.publications.try_recv() {
            self.publish(message, done);
        }
        self.drain_by.get_or_insert_with(|| Instant::now() + self.options.drain_timeout);
        self.machine.close();
    }

    /// Delivers results.
    fn settle(&mut self) {
        while let Some(outcome) = self.machine.poll_event() {
            match outcome {
                Outcome::Connected { session_present } => {
                    self.up_at = Some(Instant::now());
                    let (transport, early_data) = (self.transport, self.early_data);
                    let url = self.addresses.current().clone();
                    let event = Event::Connected { session_present, transport, early_data, url };
                    self.backlog.push_back(event);
                }
                Outcome::MayRepeat { messages } => {
                    self.backlog.push_back(Event::MayRepeat { messages });
                }
                Outcome::Message(message) => self.backlog.push_back(Event::Message(message)),
                // The caller may have dropped the future.
                Outcome::Published(done, result) => drop(done.send(result)),
                Outcome::Answered(done, result) => drop(done.send(result)),
            }
        }
    }

    /// Serves a connection until DISCONNECT is sent and the connection closed, or until `rival`, which is then
    /// returned, is answered first.
    async fn serve(
        &mut self,
        conn: ServerConnection,
        rival: &mut Option<Rival>,
    ) -> Result<Option<ServerConnection>, Error> {
        let mut served = self.begin(conn);
        loop {
            self.settle();
            self.attend(&mut served.conn);
            let said = self.machine.output(CONTROL).is_empty() && !served.unflushed;
            if self.machine.is_done() && said {
                served.conn.close(self.must_arrive).await;
                return Ok(None);
            }
            let wake = self.wait(&mut served, rival).await;
            if let Some(winner) = self.woken(wake, &mut served, rival).await? {
                return Ok(Some(winner));
            }
        }
    }

    fn begin(&mut self, mut conn: ServerConnection) -> Served {
        let early = conn.quic.as_mut().and_then(|quic| quic.early.take());
        if let Some(quic) = &mut conn.quic {
            quic.unanswered = early.is_some();
        }
        (self.transport, self.early_data) = (conn.transport, false);
        let spread = self.options.streams != Streams::Single;
        let connection = conn.quic.as_ref().filter(|_| spread).map(|quic| quic.connection.clone());
        self.machine.connect(Instant::now(), early.is_some(), connection.is_some());
        Served {
            conn,
            early,
            streams: DataStreams::new(connection),
            input: BytesMut::new(),
            unflushed: false,
            look_at: Instant::now() + LOOK,
            moving: Moving::new(Instant::now()),
            answer_by: Instant::now() + self.patience(),
        }
    }

    /// Waits for the first event.
    async fn wait(&mut self, served: &mut Served, rival: &mut Option<Rival>) -> Wake {
        let Served { conn, early, streams, input, unflushed, look_at, moving, answer_by } = served;
        let out = self.machine.output(CONTROL);
        let spread = self.options.streams != Streams::Single;
        // With streams, a blocked stream must not hold up others.
        let accepting = self.machine.has_room() && (spread || out.len() < MAX_OUT_BYTES);
        let waiting = !self.backlog.is_empty();
        let mut wake_at = self.wake_at(*answer_by);
        if conn.quic.is_some() {
            wake_at = moving.deadline().into_iter().fold(wake_at.min(*look_at), Instant::min);
        }
        let reads = !waiting && self.machine.may_receive(CONTROL);
        input.reserve(READ_BYTES);
        let mut room = input.limit(MAX_READ_BYTES);
        tokio::select! {
            biased;
            accepted = answer(early) => Wake::EarlyData(accepted),
            other = or_never(rival) => Wake::Rival(Box::new(other)),
            written = conn.writer.push(out), if *unflushed || !out.is_empty() => {
                Wake::Wrote(written)
            }
            () = self.events.send_from(&mut self.backlog), if waiting => Wake::Room,
            happened = poll_fn(|context| streams.poll(context, &self.machine, !waiting)) => {
                Wake::Stream(happened)
            }
            read = conn.reader.read_buf(&mut room), if reads => Wake::Read(read),
            command = self.inbox.next(accepting) => Wake::Command(command),
            change = changed(&mut conn.quic) => Wake::Path(change),
            places = moving.looked_up() => Wake::Places(places),
            () = self.network.changed(), if conn.quic.is_some() => Wake::Network,
            () = after_sockets(wake_at) => Wake::Time,
        }
    }

    /// Handles the event. Returns the rival if it was answered first.
    async fn woken(
        &mut self,
        wake: Wake,
        served: &mut Served,
        rival: &mut Option<Rival>,
    ) -> Result<Option<ServerConnection>, Error> {
        let Served { conn, early, streams, input, unflushed, look_at, moving, answer_by } = served;
        match wake {
            Wake::EarlyData(accepted) => {
                (*early, *rival) = (None, None);
                self.dialer.won(conn.transport);
                self.early_data = accepted;
                *answer_by = Instant::now() + self.patience();
                if !accepted {
                    self.start_over(conn).await?;
                    input.clear();
                } else if let Some(quic) = &mut conn.quic {
                    quic.unanswered = false;
                }
            }
            Wake::Rival(other) => {
                *rival = None;
                if let Ok(winner) = *other {
                    tracing::debug!(transport = winner.transport.scheme(), "answered first");
                    self.dialer.won(winner.transport);
                    self.found_by_rival(&winner, moving);
                    return Ok(Some(winner));
                }
            }
            Wake::Wrote(bytes) => {
                let bytes = bytes.map_err(lost)?;
                *unflushed = bytes > 0;
                self.machine.sent(CONTROL, bytes, Instant::now());
            }
            Wake::Stream(happened) => {
                self.stream_happened(happened, streams, conn).await?;
            }
            Wake::Room => {}
            Wake::Read(read) => {
                if read.map_err(lost)? == 0 {
                    return Err(Error::Lost("the server closed it".to_owned()));
                }
                moving.arrivals.arrived(Instant::now());
                self.read(CONTROL, input, conn).await?;
            }
            Wake::Command(command) => self.command(command),
            Wake::Path(change) => self.path_changed(change, served, rival)?,
            Wake::Places(places) => self.search_at(places, served, rival),
            Wake::Network => conn.quic.iter_mut().for_each(QuicConnection::follow),
            Wake::Time => {
                if *look_at <= Instant::now() {
                    *look_at = Instant::now() + LOOK;
                    conn.quic.iter_mut().for_each(QuicConnection::check_path);
                }
                self.time(*answer_by)?;
                self.on_moving_deadline(served, rival);
            }
        }
        Ok(None)
    }

    /// Applies commands to the connection.
    fn attend(&mut self, conn: &mut ServerConnection) {
        if std::mem::take(&mut self.rebind_wanted)
            && let Some(quic) = &mut conn.quic
        {
            quic.rebind();
        }
        if self.stats_wanted.is_empty() {
            return;
        }
        let stats = self.machine.is_up().then(|| self.path_stats(conn));
        answer_all(&mut self.stats_wanted, stats);
    }

    fn path_stats(&self, conn: &ServerConnection) -> PathStats {
        let mut stats = PathStats::new(conn.transport, self.early_data);
        if let Some(quic) = &conn.quic {
            let path = quic.connection.stats();
            stats.rtt = Some(quic.connection.rtt());
            stats.lost_packets = path.path.lost_packets;
            let copied = quic.copied();
            (stats.copies, stats.copied_bytes) = (copied.datagrams, copied.bytes);
            stats.sent_bytes = path.udp_tx.bytes;
            stats.received_bytes = path.udp_rx.bytes;
            stats.congestion_window_bytes = path.path.cwnd;
            stats.migrations = quic.migrations;
            stats.server = Some(quic.remote);
            stats.server_moves = quic.server_moves;
            stats.data_streams = self.machine.open_streams();
        }
        stats
    }

    /// The server refused early data: sends everything again, on a new stream of the same connection.
    async fn start_over(&mut self, conn: &mut ServerConnection) -> Result<(), Error> {
        self.machine.early_data_rejected();
        let quic = conn.quic.take();
        let quic = quic.ok_or_else(|| Error::Lost("no QUIC connection".to_owned()))?;
        *conn = quic.open().await.map_err(Error::Lost)?;
        if let Some(quic) = &mut conn.quic {
            quic.unanswered = false;
        }
        let spread = self.options.streams != Streams::Single;
        self.machine.connect(Instant::now(), false, spread);
        Ok(())
    }

    async fn stream_happened(
        &mut self,
        happened: Happened,
        streams: &mut DataStreams,
        conn: &mut ServerConnection,
    ) -> Result<(), Error> {
        match happened {
            Happened::Opened { flow } => self.machine.stream_opened(flow),
            Happened::Wrote { flow, bytes } => self.machine.sent(flow, bytes, Instant::now()),
            Happened::Read { flow } => {
                if let Some(input) = streams.input(flow) {
                    self.read(flow, input, conn).await?;
                }
            }
            Happened::Lost { flow, loss } => self.machine.stream_lost(flow, loss),
            Happened::Finished => self.machine.streams_finished(),
            Happened::ConnectionLost(error) => return Err(Error::Lost(error.to_string())),
        }
        Ok(())
    }

    async fn read(
        &mut self,
        flow: usize,
        input: &mut BytesMut,
        conn: &mut ServerConnection,
    ) -> Result<(), Error> {
        match self.machine.receive(Instant::now(), flow, input) {
            Ok(used) => {
                input.advance(used);
                Ok(())
            }
            Err(error) => {
                // Sends the reason if the connection accepts it at once; the connection is lost either way.
                let farewell = async {
                    conn.writer.push(self.machine.output(CONTROL)).await?;
                    conn.writer.push(&[]).await
                };
                drop(timeout(FAREWELL, farewell).await);
                Err(error)
            }
        }
    }

    fn wake_at(&self, answer_by: Instant) -> Instant {
        let connecting = (!self.machine.is_up() && !self.machine.is_done()).then_some(answer_by);
        let deadlines = [connecting, self.machine.deadline(), self.drain_by];
        deadlines.into_iter().flatten().min().unwrap_or_else(|| Instant::now() + FAR)
    }

    fn time(&mut self, answer_by: Instant) -> Result<(), Error> {
        let now = Instant::now();
        if self.drain_by.is_some_and(|by| by <= now) {
            if self.machine.is_done() {
                return Err(Error::Lost("the server does not accept the last bytes".to_owned()));
            }
            self.machine.close_now();
            self.drain_by = Some(now + FAREWELL);
        }
        if !self.machine.is_up() && !self.machine.is_done() && answer_by <= now {
            return Err(self.no_answer());
        }
        self.machine.on_deadline(now, self.backlog.is_empty())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "driver_tests.rs"]
mod tests;
