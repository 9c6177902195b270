//! The networks of the experiment runner: hosts on which it starts programs, their addresses, and the packets that
//! an observer in the middle has seen.
//!
//! [`Loopback`] is the network without links: every host is this machine. The link emulator has another
//! [`NetworkFactory`], and tests have their own. This module knows no impairments: a link's settings are passed on as
//! they are in the experiment file.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command};

use serde::{Deserialize, Serialize};

use crate::link::ConfigError;
use crate::observe::Kind;

/// A link between two hosts, placeholders filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPlan {
    /// The two hosts, by name.
    pub between: [String; 2],
    /// The link's settings, keys of the link model and values, in the order of the file.
    pub settings: Vec<(String, String)>,
}

/// A network to be made for one sample.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkPlan {
    /// Hosts by name.
    pub hosts: Vec<String>,
    /// Links between them.
    pub links: Vec<LinkPlan>,
    /// Whether round trips are measured by the spin bit, which takes the emulator some time per packet.
    pub round_trips: bool,
    /// Seed of all the network's random decisions.
    pub seed: u64,
    /// Folder for captures and logs; it exists.
    pub folder: PathBuf,
}

/// One packet as a capture on a host would show it.
#[derive(Clone, Debug, PartialEq)]
pub struct CapturedPacket {
    /// When the host sent or received it, in nanoseconds of this machine's monotonic clock.
    pub at_ns: u64,
    /// The host, by name.
    pub host: String,
    /// Whether the host sent it; otherwise the host received it.
    pub sent: bool,
    /// Length of the IP packet in bytes.
    pub bytes: u32,
    /// Purpose of the packet.
    pub kind: Kind,
}

/// Observations of the network in a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Every packet, in order of time; empty where nothing observes.
    pub packets: Vec<CapturedPacket>,
    /// Round trips that QUIC's spin bit showed, in order of time for each flow.
    pub round_trips: Vec<RoundTrip>,
    /// Further statistics for the sample's record.
    pub counters: BTreeMap<String, f64>,
    /// Lateness of the emulator's packets, if there is one.
    pub lateness: Option<Lateness>,
}

/// A round trip as QUIC's latency spin bit showed it at a host (RFC 9000 section 17.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// When it ended, in nanoseconds of this machine's monotonic clock.
    pub at_ns: u64,
    /// The host, by name.
    pub host: String,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// The path's own round trip meanwhile, in nanoseconds; `None` if it was not seen.
    pub path_ns: Option<u64>,
}

/// Delay between the decided time and that at which packets left the emulator, in microseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct Lateness {
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Worst.
    pub max_us: f64,
}

/// Makes networks.
pub trait NetworkFactory: Sync {
    /// Checks a link's settings.
    ///
    /// # Errors
    /// The first setting that is wrong; the caller knows its line.
    fn check(&self, settings: &[(String, String)]) -> Result<(), ConfigError>;

    /// Makes a network.
    ///
    /// # Errors
    /// What this machine lacks, as text for a person.
    fn open(&self, plan: &NetworkPlan) -> std::io::Result<Box<dyn Network>>;
}

/// A network. Dropping it removes it.
pub trait Network {
    /// Address of a host of the plan, after it has changed this many times.
    fn address(&self, host: &str, changes: u32) -> Option<IpAddr>;

    /// A TCP and UDP port that nothing on this host uses.
    ///
    /// # Errors
    /// No port is left.
    fn free_port(&mut self, host: &str) -> std::io::Result<u16>;

    /// Starts a program on a host.
    ///
    /// # Errors
    /// As of [`Command::spawn`].
    fn spawn(&mut self, host: &str, command: &mut Command) -> std::io::Result<Child>;

    /// Removes the network and returns what it observed.
    fn close(self: Box<Self>) -> Observed;
}

/// No links: all hosts are this machine's loopback interface, and packets are not observed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loopback;

impl NetworkFactory for Loopback {
    fn check(&self, settings: &[(String, String)]) -> Result<(), ConfigError> {
        settings.first().map_or(Ok(()), |(key, _)| {
            Err(ConfigError::new(key, "loopback has no link emulator to set it in"))
        })
    }

    fn open(&self, _plan: &NetworkPlan) -> std::io::Result<Box<dyn Network>> {
        Ok(Box::new(Loopback))
    }
}

impl Network for Loopback {
    fn address(&self, _host: &str, _changes: u32) -> Option<IpAddr> {
        Some(Ipv4Addr::LOCALHOST.into())
    }

    fn free_port(&mut self, _host: &str) -> std::io::Result<u16> {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr().map(|address| address.port())
    }

    fn spawn(&mut self, _host: &str, command: &mut Command) -> std::io::Result<Child> {
        command.spawn()
    }

    fn close(self: Box<Self>) -> Observed {
        Observed::default()
    }
}
