//! The emulator as a network of the experiment runner: hosts by name, links by their settings, and an observer
//! that records every packet.
//!
//! Nothing is decided here: names become numbers, settings become link configurations. The links' decision log is
//! written to the sample's folder, so that runs can be compared.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::emulator::Emulator;
use crate::link::{ConfigError, DropReason, Ends, HostId, LinkConfig, Topology};
use crate::network::{
    CapturedPacket, Lateness, Network, NetworkFactory, NetworkPlan, Observed, RoundTrip,
};
use crate::observe::{Flows, Kind, Observer, begins_quic, kind};
use crate::units::Nanos;
use crate::wire::{PacketView, Protocol};

/// The first port given to roles; below Linux' ephemeral ports, which begin at 32768.
const FIRST_PORT: u16 = 20_000;

/// File of the decision log; each line has the link's hosts and one entry.
pub const DECISIONS: &str = "decisions.txt";

/// The most packets recorded in a sample, so that a runaway sample does not use up memory.
const MAX_PACKETS: usize = 5_000_000;

/// Makes emulated networks. [`acquire`](crate::net::acquire) comes first.
#[derive(Clone, Copy, Debug, Default)]
pub struct EmulatedNetworkFactory;

impl NetworkFactory for EmulatedNetworkFactory {
    fn check(&self, settings: &[(String, String)]) -> Result<(), ConfigError> {
        configure(settings).map(|_| ())
    }

    fn open(&self, plan: &NetworkPlan) -> std::io::Result<Box<dyn Network>> {
        open(plan).map_err(std::io::Error::other)
    }
}

fn configure(settings: &[(String, String)]) -> Result<LinkConfig, ConfigError> {
    let mut link = LinkConfig::default();
    // A profile is what the other settings refine, wherever it stands.
    let (profile, rest): (Vec<_>, Vec<_>) = settings.iter().partition(|(key, _)| key == "profile");
    for (key, value) in profile.into_iter().chain(rest) {
        link.set(key, value)?;
    }
    link.check()?;
    Ok(link)
}

fn open(plan: &NetworkPlan) -> Result<Box<dyn Network>, crate::Error> {
    let id = |name: &str| {
        let index = plan.hosts.iter().position(|host| host == name).unwrap_or(0);
        HostId(u16::try_from(index).unwrap_or(u16::MAX))
    };
    let hosts = u16::try_from(plan.hosts.len()).unwrap_or(u16::MAX);
    let mut topology = Topology::new(hosts, plan.seed)?;
    for link in &plan.links {
        let [a, b] = &link.between;
        topology.add_link(Ends::Between(id(a), id(b)), configure(&link.settings)?)?;
    }
    let packet_log = Arc::new(Mutex::new(PacketLog::default()));
    let observed = if plan.round_trips { hosts } else { 0 };
    let flows: Vec<_> =
        (0..observed).map(|host| Arc::new(Mutex::new(Flows::at(HostId(host))))).collect();
    let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(Arc::clone(&packet_log))];
    for flows in &flows {
        observers.push(Box::new(Arc::clone(flows)));
    }
    let emulator = Emulator::start(topology, observers)?;
    Ok(Box::new(EmulatedNetwork {
        names: plan.hosts.clone(),
        clock: emulator.clock(),
        emulator,
        packet_log,
        flows,
        next_port: FIRST_PORT,
        links: plan.links.iter().map(|link| link.between.join("-")).collect(),
        folder: plan.folder.clone(),
    }))
}

/// Packets in the order in which they passed.
#[derive(Debug, Default)]
struct PacketLog {
    packets: Vec<PacketRecord>,
    lost: u64,
    /// Ports, the lower one first, between which a QUIC connection has begun.
    quic: BTreeSet<(u16, u16)>,
}

impl PacketLog {
    fn record(&mut self, at: Nanos, host: HostId, sent: bool, packet: &[u8]) {
        let Some(view) = PacketView::parse(packet) else { return };
        if view.is_link_scope() || self.packets.len() >= MAX_PACKETS {
            return;
        }
        let kind = kind(&view, self.is_quic(&view));
        let bytes = packet.len() as u32;
        self.packets.push(PacketRecord { at, host, sent, bytes, kind });
    }

    fn is_quic(&mut self, view: &PacketView<'_>) -> bool {
        let Some((a, b)) = view.ports().filter(|_| view.protocol() == Protocol::Udp) else {
            return false;
        };
        let ports = (a.min(b), a.max(b));
        if begins_quic(view.payload()) {
            self.quic.insert(ports);
        }
        self.quic.contains(&ports)
    }
}

#[derive(Debug)]
struct PacketRecord {
    at: Nanos,
    host: HostId,
    sent: bool,
    bytes: u32,
    kind: Kind,
}

impl Observer for PacketLog {
    fn sent(&mut self, at: Nanos, from: HostId, packet: &[u8]) {
        self.record(at, from, true, packet);
    }

    fn delivered(&mut self, at: Nanos, to: HostId, packet: &[u8]) {
        self.record(at, to, false, packet);
    }

    fn dropped(&mut self, _at: Nanos, _from: HostId, _reason: DropReason, _packet: &[u8]) {
        self.lost += 1;
    }
}

#[derive(Debug)]
struct EmulatedNetwork {
    names: Vec<String>,
    clock: Clock,
    emulator: Emulator,
    packet_log: Arc<Mutex<PacketLog>>,
    /// Flows per host; empty unless round trips are measured.
    flows: Vec<Arc<Mutex<Flows>>>,
    next_port: u16,
    /// Names of the links, in the order of the topology.
    links: Vec<String>,
    folder: PathBuf,
}

/// Writes the links' decision log to a folder.
fn write_decisions(folder: &Path, names: &[String], topology: &Topology) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(folder.join(DECISIONS))?);
    for (name, (_, link)) in names.iter().zip(topology.links()) {
        for entry in link.log().entries() {
            writeln!(file, "{name} {entry}")?;
        }
    }
    file.flush()
}

impl EmulatedNetwork {
    fn id(&self, host: &str) -> Option<HostId> {
        let index = self.names.iter().position(|name| name == host)?;
        u16::try_from(index).ok().map(HostId)
    }

    fn seen(&self) -> Vec<CapturedPacket> {
        let log = self.packet_log.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = log.packets.iter().filter_map(|packet| {
            Some(CapturedPacket {
                at_ns: self.clock.monotonic(packet.at),
                host: self.names.get(usize::from(packet.host.0))?.clone(),
                sent: packet.sent,
                bytes: packet.bytes,
                kind: packet.kind,
            })
        });
        seen.collect()
    }

    /// Round trips measured by the spin bit, of the connections whose endpoints both use it.
    fn round_trips(&self) -> Vec<RoundTrip> {
        let mut trips = Vec::new();
        for (name, flows) in self.names.iter().zip(&self.flows) {
            let flows = flows.lock().unwrap_or_else(PoisonError::into_inner);
            for flow in flows.flows() {
                if !flow.spin().is_some_and(|spin| spin.takes_part) {
                    continue;
                }
                trips.extend(flow.spin_bit().two_way().iter().map(|sample| RoundTrip {
                    at_ns: self.clock.monotonic(sample.at),
                    host: name.clone(),
                    took_ns: sample.rtt,
                    path_ns: flow.path_round_trip(sample.at - sample.rtt, sample.at),
                }));
            }
        }
        trips
    }
}

impl Network for EmulatedNetwork {
    fn address(&self, host: &str, changes: u32) -> Option<IpAddr> {
        Some(self.id(host)?.ipv4(changes).into())
    }

    fn free_port(&mut self, _host: &str) -> std::io::Result<u16> {
        // The hosts are new: all ports are free.
        self.next_port += 1;
        Ok(self.next_port)
    }

    fn spawn(&mut self, host: &str, command: &mut Command) -> std::io::Result<Child> {
        let missing = || std::io::Error::other(format!("no host {host}"));
        let id = self.id(host).ok_or_else(missing)?;
        self.emulator.host(id).map_err(std::io::Error::other)?.spawn(command)
    }

    fn close(self: Box<Self>) -> Observed {
        let (packets, round_trips) = (self.seen(), self.round_trips());
        let lost = self.packet_log.lock().unwrap_or_else(PoisonError::into_inner).lost as f64;
        let mut counters = [
            ("packets_sent".to_owned(), packets.iter().filter(|seen| seen.sent).count() as f64),
            ("packets_lost".to_owned(), lost),
            // Losses that the link model did not decide: a sample with any is invalid.
            ("packets_overflowed".to_owned(), self.emulator.overflowed() as f64),
        ];
        let outcome = match self.emulator.finish() {
            Ok(outcome) => outcome,
            Err(error) => {
                tracing::warn!(%error, "the emulator had stopped");
                return Observed {
                    packets,
                    round_trips,
                    counters: counters.into(),
                    lateness: None,
                };
            }
        };
        if let Err(error) = write_decisions(&self.folder, &self.links, &outcome.topology) {
            tracing::warn!(%error, folder = %self.folder.display(), "decisions are not kept");
        }
        counters[2].1 += outcome.refused as f64;
        let us = |ns: u64| ns as f64 / 1e3;
        let late = outcome.lateness;
        let lateness = (late.packets > 0).then(|| Lateness {
            p50_us: us(late.p50_ns),
            p99_us: us(late.p99_ns),
            max_us: us(late.max_ns),
        });
        Observed { packets, round_trips, counters: counters.into(), lateness }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_profile_is_refined_wherever_it_stands() {
        let one = configure(&settings(&[("profile", "2g-64k"), ("loss", "5%")])).unwrap();
        let other = configure(&settings(&[("loss", "5%"), ("profile", "2g-64k")])).unwrap();
        assert_eq!(one, other);
        assert_eq!((one.up.loss, one.down.loss), (0.05, 0.05));
    }

    #[test]
    fn wrong_settings_are_named() {
        let wrong = |pairs| EmulatedNetworkFactory.check(&settings(pairs)).unwrap_err();
        assert_eq!(wrong(&[("delay", "1ms"), ("loss", "lots")]).key, "loss");
        assert_eq!(wrong(&[("reorder", "1%")]).key, "reorder");
        assert!(wrong(&[("lost", "1%")]).reason.contains("drop-every"));
    }
}
