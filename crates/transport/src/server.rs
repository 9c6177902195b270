//! Starting and stopping: binds every address first, then runs one thread a worker.
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
use crate::config::{ListenerConfig, ServerConfig, TransportLimits};
use crate::error::StartError;
use crate::listen::bind_tcp;
use crate::stream::Io;
use crate::worker::{Control, WAKER, Worker};

/// A running server; dropping it drains at once, without waiting for slow clients.
#[derive(Debug)]
pub struct Server {
    bound: Vec<SocketAddr>,
    clock: Clock,
    control: Arc<Control>,
    threads: Vec<(JoinHandle<io::Result<()>>, Arc<Waker>)>,
}

type BoundListeners = Vec<(TcpListener, Arc<ListenerConfig>)>;

impl Server {
    /// Binds all listeners and starts the workers.
    ///
    /// `broker` must have been made for `config.workers` workers and told the time by `clock`.
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
        let mut sockets: Vec<BoundListeners> = (0..workers).map(|_| Vec::new()).collect();
        for listener in config.listeners {
            let address = listener.address;
            let bind_error = |source| StartError::Bind { address, source };
            let shared = bind_tcp(address, workers).map_err(bind_error)?;
            if let Some(first) = shared.first() {
                bound.push(first.local_addr().map_err(bind_error)?);
            }
            let listener = Arc::new(listener);
            for (worker, socket) in sockets.iter_mut().zip(shared) {
                worker.push((TcpListener::from_std(socket), Arc::clone(&listener)));
            }
        }
        let control = Arc::new(Control::new(workers));
        let mut server = Server { bound, clock, control, threads: Vec::with_capacity(workers) };
        for (index, listeners) in sockets.into_iter().enumerate() {
            server.spawn(Arc::clone(broker), index, listeners, config.limits.clone())?;
        }
        Ok(server)
    }

    fn spawn(
        &mut self,
        broker: Arc<Broker>,
        index: usize,
        listeners: BoundListeners,
        limits: TransportLimits,
    ) -> io::Result<()> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let (clock, control, for_wake) = (self.clock, Arc::clone(&self.control), waker.clone());
        let wake = move || {
            if let Err(error) = for_wake.wake() {
                warn!(%error, "a worker could not be woken");
            }
        };
        let run = move || {
            let shard = Shard::new(broker, index, clock.now(), Arc::new(wake));
            let io = Io::new(shard, limits);
            Worker::new(poll, clock, control, io, listeners)?.run()
        };
        let name = format!("fulmar-worker-{index}");
        let thread = std::thread::Builder::new().name(name).spawn(run)?;
        self.threads.push((thread, waker));
        Ok(())
    }

    /// Where the listeners are bound, in the order of the configuration, with the ports the system
    /// chose.
    #[must_use]
    pub fn bound(&self) -> &[SocketAddr] {
        &self.bound
    }

    /// Stops accepting, tells every client (MQTT 5.0 reason 0x8B) and waits at most `timeout` for
    /// what is on its way to them; then all workers have ended. Storage is flushed by its owner
    /// after this.
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

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}
