//! Starts and stops: binds every address first, then runs one thread per worker.
//!
//! There is no global state; a process may run several servers. TLS settings are exchanged by
//! [`crate::SharedTls::replace`] while the server runs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fulmar_broker::{Broker, Shard};
use mio::net::TcpListener;
use mio::{Poll, Waker};
use tracing::warn;

use crate::clock::Clock;
use crate::config::{ListenerConfig, QuicListener, ServerConfig};
use crate::connection::Io;
use crate::error::StartError;
use crate::handoff::{Handoff, HandoffQueue};
use crate::listen::{bind_tcp, bind_udp};
use crate::quic::{EndpointSlot, QuicShard};
use crate::run::run;
use crate::scheduler::Scheduler;
use crate::worker::{Control, WAKER, Worker};

/// A running server; dropping it drains at once, without waiting for slow clients.
#[derive(Debug)]
pub struct Server {
    bound: Vec<SocketAddr>,
    bound_quic: Vec<SocketAddr>,
    clock: Clock,
    control: Arc<Control>,
    handoff: Handoff,
    threads: Vec<(JoinHandle<io::Result<()>>, Arc<Waker>)>,
}

/// Sockets and state that one worker is given.
struct Sockets {
    tcp: Vec<(TcpListener, Arc<ListenerConfig>)>,
    quic: Vec<QuicShard>,
    handoff_queue: Arc<HandoffQueue>,
}

impl Sockets {
    fn new() -> Sockets {
        Sockets { tcp: Vec::new(), quic: Vec::new(), handoff_queue: Arc::new(HandoffQueue::new()) }
    }
}

impl Server {
    /// Binds all listeners and starts the workers.
    ///
    /// `broker` must have been created for `config.workers` workers and with the time of `clock`.
    ///
    /// # Errors
    /// Names the address that cannot be bound, or says why a worker cannot run. Nothing is left
    /// running or bound then.
    pub fn start(
        broker: &Arc<Broker>,
        config: ServerConfig,
        clock: Clock,
    ) -> Result<Server, StartError> {
        let workers = config.workers;
        if workers == 0 {
            return Err(StartError::Workers { workers });
        }
        let mut bound = Vec::with_capacity(config.listeners.len());
        let mut sockets: Vec<Sockets> = (0..workers).map(|_| Sockets::new()).collect();
        for listener in &config.listeners {
            let address = listener.address;
            let bind_error = |source| StartError::Bind { address, source };
            let shared = bind_tcp(address, workers).map_err(bind_error)?;
            if let Some(first) = shared.first() {
                bound.push(first.local_addr().map_err(bind_error)?);
            }
            let listener = Arc::new(listener.clone());
            for (worker, socket) in sockets.iter_mut().zip(shared) {
                worker.tcp.push((TcpListener::from_std(socket), Arc::clone(&listener)));
            }
        }
        let mut bound_quic = Vec::with_capacity(config.quic.len());
        for (endpoint, listener) in config.quic.iter().enumerate() {
            bound_quic.push(add_quic(&mut sockets, listener, endpoint, clock)?);
        }
        let control = Arc::new(Control::new(workers));
        let mut handoff_queues = Vec::with_capacity(workers);
        let mut polls = Vec::with_capacity(workers);
        for worker in &sockets {
            let poll = Poll::new()?;
            let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
            handoff_queues.push((Arc::clone(&worker.handoff_queue), Arc::clone(&waker)));
            polls.push((poll, waker));
        }
        let handoff = Handoff::new(handoff_queues.into_iter());
        let threads = Vec::with_capacity(workers);
        let mut server = Server { bound, bound_quic, clock, control, handoff, threads };
        let scheduler = Arc::new(Scheduler::new(polls.iter().map(|(_, waker)| Arc::clone(waker))));
        for (index, (sockets, poll)) in sockets.into_iter().zip(polls).enumerate() {
            let place = (Arc::clone(&scheduler), index);
            server.spawn(Arc::clone(broker), place, poll, sockets, &config)?;
        }
        Ok(server)
    }

    fn spawn(
        &mut self,
        broker: Arc<Broker>,
        (scheduler, index): (Arc<Scheduler<Worker>>, usize),
        (poll, waker): (Poll, Arc<Waker>),
        sockets: Sockets,
        config: &ServerConfig,
    ) -> io::Result<()> {
        let (limits, coalesce) = (config.limits.clone(), config.coalesce);
        let origins = Arc::clone(&config.origins);
        let (clock, control, for_wake) = (self.clock, Arc::clone(&self.control), waker.clone());
        let wake = move || {
            if let Err(error) = for_wake.wake() {
                warn!(%error, "a worker could not be woken");
            }
        };
        let body = move || {
            let shard = Shard::new(broker, index, clock.now(), Arc::new(wake));
            let io = Io::new(shard, limits, origins);
            let worker = Worker::new(
                poll,
                clock,
                control,
                io,
                sockets.tcp,
                sockets.quic,
                sockets.handoff_queue,
            )?;
            run(&scheduler, index, worker, coalesce)
        };
        let name = format!("fulmar-worker-{index}");
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        self.threads.push((thread, waker));
        Ok(())
    }

    /// Where the listeners are bound, in the order of the configuration, with the ports the system
    /// chose.
    pub fn bound(&self) -> &[SocketAddr] {
        &self.bound
    }

    /// Where the QUIC listeners are bound, in the order of the configuration.
    pub fn bound_quic(&self) -> &[SocketAddr] {
        &self.bound_quic
    }

    /// Takes connections that another part of the program has accepted.
    pub fn handoff(&self) -> Handoff {
        self.handoff.clone()
    }

    /// Stops accepting, sends every client DISCONNECT (MQTT 5.0 reason 0x8B) and waits at most `timeout` for data in
    /// flight; then all workers have ended. The owner of storage flushes it after this.
    pub fn drain(mut self, timeout: Duration) {
        self.stop(timeout);
    }

    fn stop(&mut self, timeout: Duration) {
        self.control.drain(self.clock.now() + timeout);
        for (_, waker) in &self.threads {
            if let Err(error) = waker.wake() {
                warn!(%error, "a worker could not be woken to drain");
            }
        }
        for (thread, _) in self.threads.drain(..) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(name, %error, "a worker ended with an error"),
                Err(_) => warn!(name, "a worker panicked"),
            }
        }
    }
}

/// Binds one QUIC listener and gives every worker its endpoint.
fn add_quic(
    workers: &mut [Sockets],
    listener: &QuicListener,
    endpoint: usize,
    clock: Clock,
) -> Result<SocketAddr, StartError> {
    let bind_error = |source| StartError::Bind { address: listener.address, source };
    let shared = bind_udp(listener.address, workers.len(), listener.settings.server_id.is_some())
        .map_err(bind_error)?;
    let first = shared.first().map_or(Ok(listener.address), std::net::UdpSocket::local_addr);
    let address = first.map_err(bind_error)?;
    let count = shared.len();
    for (index, (worker, socket)) in workers.iter_mut().zip(shared).enumerate() {
        let place = EndpointSlot { index, workers: count, endpoint };
        worker.quic.push(QuicShard::new(socket, listener, place, clock)?);
    }
    Ok(address)
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
