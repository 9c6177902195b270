//! The emulator makes a topology real: creates hosts, runs the router, and starts programs.
//!
//! ```no_run
//! use std::process::Command;
//! use fulmar_lab::emulator::Emulator;
//! use fulmar_lab::link::{Ends, HostId, LinkConfig, Topology};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! fulmar_lab::net::acquire()?;
//! let mut bad = LinkConfig::default();
//! bad.set("profile", "2g-64k")?;
//! bad.set("loss", "5%")?;
//! let mut topology = Topology::new(2, 42)?;
//! topology.add_link(Ends::Access(HostId(0)), bad)?;
//! let emulator = Emulator::start(topology, Vec::new())?;
//! let server = emulator.host(HostId(1))?.addresses()[0].to_string();
//! let mut ping = emulator.host(HostId(0))?.spawn(Command::new("ping").args(["-c3", &server]))?;
//! ping.wait()?;
//! println!("{:?}", emulator.finish()?.lateness);
//! # Ok(()) }
//! ```

use std::sync::Arc;
use std::thread::JoinHandle;

use crate::Error;
use crate::clock::Clock;
use crate::link::{ConfigError, HostId, Topology};
use crate::net::Host;
use crate::observe::Observer;
use crate::router::{Handle, Outcome, Router};

/// Hosts joined by emulated links. Dropping it stops the router and removes the hosts; programs that still run in
/// them have no network until the thread that started them ends.
#[derive(Debug)]
pub struct Emulator {
    clock: Clock,
    hosts: Vec<Arc<Host>>,
    handle: Handle,
    router: Option<JoinHandle<Result<Outcome, Error>>>,
}

impl Emulator {
    /// Makes the hosts and starts to route. [`acquire`](crate::net::acquire) comes first.
    ///
    /// # Errors
    /// The system refuses namespaces, devices or the thread.
    pub fn start(topology: Topology, observers: Vec<Box<dyn Observer>>) -> Result<Emulator, Error> {
        let hosts = Self::make_hosts(&topology)?;
        Self::start_with(Clock::start(), topology, hosts, observers)
    }

    /// The hosts of a topology, for callers that need them before routing starts.
    ///
    /// # Errors
    /// The system refuses namespaces or devices.
    pub fn make_hosts(topology: &Topology) -> Result<Vec<Arc<Host>>, Error> {
        topology.hosts().map(|id| Host::new(id).map(Arc::new)).collect()
    }

    /// Like [`Emulator::start`], with an existing clock and hosts.
    ///
    /// # Errors
    /// The system refuses the router's thread or what it needs.
    pub fn start_with(
        clock: Clock,
        topology: Topology,
        hosts: Vec<Arc<Host>>,
        observers: Vec<Box<dyn Observer>>,
    ) -> Result<Emulator, Error> {
        let handle = Handle::new()?;
        let router = Router::new(clock, topology, hosts.clone(), observers, &handle)?;
        let router = std::thread::Builder::new()
            .name("lab-router".to_owned())
            .spawn(move || router.run())
            .map_err(Error::when("starting the router's thread"))?;
        Ok(Emulator { clock, hosts, handle, router: Some(router) })
    }

    /// The run's clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// A host.
    ///
    /// # Errors
    /// There is none of that number.
    pub fn host(&self, id: HostId) -> Result<&Arc<Host>, Error> {
        let missing = || ConfigError::new("host", format!("no host {}", id.0)).into();
        self.hosts.get(usize::from(id.0)).ok_or_else(missing)
    }

    /// Packets that hosts sent but their devices' queues dropped: losses that the link model did not decide. Anything
    /// but zero spoils a measurement.
    pub fn overflowed(&self) -> u64 {
        self.hosts.iter().filter_map(|host| host.overflowed()).sum()
    }

    /// Whether nothing is in flight: no packet on a link, and no unacknowledged FIN of a TCP connection in a host,
    /// which the kernel retransmits even after its program has ended.
    pub fn is_idle(&self) -> bool {
        self.handle.is_idle() && !self.hosts.iter().any(|host| host.is_closing())
    }

    /// Stops routing and returns the outcome.
    ///
    /// # Errors
    /// The router had stopped because the system refused it something.
    pub fn finish(mut self) -> Result<Outcome, Error> {
        self.handle.stop();
        match self.router.take().map(JoinHandle::join) {
            Some(Ok(outcome)) => outcome,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(std::io::Error::other("the router was stopped before").into()),
        }
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(router) = self.router.take() {
            let _ = router.join();
        }
    }
}
