//! The link between gateway and platform: datagrams go through the lab's model of a bad link.
//!
//! The gateway sends to a socket of ours as if it were the server, and each address it sends from has a socket towards
//! the server, as behind a router. The model wants packets: a header of addresses and ports is put in front of each
//! datagram, so that its length counts as on a real link, and taken off again.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fulmar_lab::link::{Direction, Link, LinkConfig, Output};
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle as Task;
use tokio::time::{Instant, sleep_until};

use crate::exit::Usage;

/// Headers of IPv4 and UDP.
const HEADER: usize = 28;
const DATAGRAM: usize = 65_536 - HEADER;
/// The most client addresses of the gateway that are tracked; it has a new one after each reconnection.
const MAX_CLIENTS: usize = 16;
/// Datagrams that may wait for the model.
const WAITING: usize = 4096;

/// When the link is down.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    /// Seconds after the start.
    pub(super) after_s: u32,
    /// Seconds; 0 for never.
    pub(super) for_s: u32,
}

/// A link that runs until it is dropped.
pub(super) struct Uplink {
    address: SocketAddr,
    /// The thread waits for its end.
    _stop: oneshot::Sender<()>,
}

/// The link's settings.
pub(super) fn settings(profile: &str, loss: &str, outage: Outage) -> anyhow::Result<LinkConfig> {
    let mut link = LinkConfig::default();
    let mut set = |key: &str, value: &str| {
        link.set(key, value).map_err(|error| Usage(format!("--link or --loss: {error}")))
    };
    set("profile", profile)?;
    set("loss", loss)?;
    if outage.for_s > 0 {
        let end_s = outage.after_s.saturating_add(outage.for_s);
        set("down", &format!("{}s-{end_s}s", outage.after_s))?;
    }
    link.check().map_err(|error| Usage(format!("--link, --loss or --outage: {error}")))?;
    Ok(link)
}

impl Uplink {
    /// Opens the link to a server; time begins for it now.
    pub(super) fn start(link: LinkConfig, server: &str, seed: u64) -> anyhow::Result<Uplink> {
        let server: SocketAddr = server.parse().context("the server's address")?;
        let link = Link::new(link, seed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let front = runtime.block_on(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let address = front.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        std::thread::Builder::new().name("fulmar-uplink".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = Pump::new(link, Arc::new(front), server).run() => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Uplink { address, _stop: stop })
    }

    /// Address that the gateway is to use as the server's.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// One of the gateway's addresses, and its socket towards the server.
struct Client {
    number: u64,
    address: SocketAddr,
    outer: Arc<UdpSocket>,
    reader: Task<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

struct Pump {
    link: Link,
    began: Instant,
    front: Arc<UdpSocket>,
    server: SocketAddr,
    clients: VecDeque<Client>,
    numbers: u64,
    down: mpsc::Sender<(u64, Vec<u8>)>,
    from_server: mpsc::Receiver<(u64, Vec<u8>)>,
}

impl Pump {
    fn new(link: Link, front: Arc<UdpSocket>, server: SocketAddr) -> Pump {
        let (down, from_server) = mpsc::channel(WAITING);
        let (began, clients) = (Instant::now(), VecDeque::new());
        Pump { link, began, front, server, clients, numbers: 0, down, from_server }
    }

    async fn run(mut self) {
        let mut buffer = vec![0; DATAGRAM];
        loop {
            self.deliver().await;
            let due = self.link.deadline().map(|at| self.began + Duration::from_nanos(at));
            tokio::select! {
                received = self.front.recv_from(&mut buffer) => {
                    // An ICMP error about an earlier datagram is no reason to stop.
                    let Ok((length, address)) = received else { continue };
                    let Some(number) = self.client(address).await else { continue };
                    self.offer(Direction::Up, number, &buffer[..length]);
                }
                Some((number, datagram)) = self.from_server.recv() => {
                    self.offer(Direction::Down, number, &datagram);
                }
                () = sleep_until(due.unwrap_or(self.began)), if due.is_some() => {}
            }
        }
    }

    /// Nanoseconds since the link began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn offer(&mut self, direction: Direction, number: u64, datagram: &[u8]) {
        let packet = with_header(direction, number, datagram);
        self.link.receive(self.now(), direction, packet, number);
    }

    /// Delivers packets that have passed the link.
    async fn deliver(&mut self) {
        while let Some(output) = self.link.poll_event(self.now()) {
            let Output::Arrive { direction, packet, tag, .. } = output else { continue };
            let Some(client) = self.clients.iter().find(|client| client.number == tag) else {
                continue;
            };
            let Some(datagram) = packet.get(HEADER..) else { continue };
            // What the kernel does not take is lost, as on any link.
            let _ = match direction {
                Direction::Up => client.outer.send(datagram).await,
                Direction::Down => self.front.send_to(datagram, client.address).await,
            };
        }
    }

    /// The number of an address; a new one has a socket made for it.
    async fn client(&mut self, address: SocketAddr) -> Option<u64> {
        if let Some(known) = self.clients.iter().find(|client| client.address == address) {
            return Some(known.number);
        }
        let outer = match connected(self.server).await {
            Ok(outer) => Arc::new(outer),
            Err(error) => {
                tracing::warn!("cannot reach the server: {error}");
                return None;
            }
        };
        if self.clients.len() == MAX_CLIENTS {
            self.clients.pop_front();
        }
        self.numbers += 1;
        let reader = tokio::spawn(read(self.numbers, Arc::clone(&outer), self.down.clone()));
        self.clients.push_back(Client { number: self.numbers, address, outer, reader });
        Some(self.numbers)
    }
}

async fn connected(server: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    socket.connect(server).await?;
    Ok(socket)
}

async fn read(number: u64, outer: Arc<UdpSocket>, down: mpsc::Sender<(u64, Vec<u8>)>) {
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let Ok(length) = outer.recv(&mut buffer).await else { continue };
        if down.send((number, buffer[..length].to_vec())).await.is_err() {
            return;
        }
    }
}

/// A datagram as a packet of IPv4 and UDP; the client's number is its port.
fn with_header(direction: Direction, number: u64, datagram: &[u8]) -> Vec<u8> {
    const CLIENT: [u8; 4] = [198, 18, 1, 1];
    const SERVER: [u8; 4] = [198, 18, 1, 2];
    const SERVER_PORT: u16 = 14567;
    let length = (HEADER + datagram.len()) as u16;
    let port = 49_152 + (number % 16_384) as u16;
    let (from, to, ports) = match direction {
        Direction::Up => (CLIENT, SERVER, [port, SERVER_PORT]),
        Direction::Down => (SERVER, CLIENT, [SERVER_PORT, port]),
    };
    let mut packet = Vec::with_capacity(HEADER + datagram.len());
    packet.extend([0x45, 0]);
    packet.extend(length.to_be_bytes());
    // Not fragmented, 64 hops, UDP, no checksum: nobody looks at it.
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend(from.into_iter().chain(to));
    packet.extend(ports.into_iter().flat_map(u16::to_be_bytes));
    packet.extend((length - 20).to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(datagram);
    packet
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::net::UdpSocket as Socket;

    const NEVER: Outage = Outage { after_s: 1, for_s: 0 };

    fn ends(config: LinkConfig) -> (Uplink, Socket, Socket) {
        let server = Socket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let uplink = Uplink::start(config, &server.local_addr().unwrap().to_string(), 1).unwrap();
        let client = Socket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.connect(uplink.address()).unwrap();
        (uplink, server, client)
    }

    #[test]
    fn datagrams_pass_both_ways_whole_and_for_each_address() {
        let (uplink, server, client) = ends(settings("perfect", "0%", NEVER).unwrap());
        let other = Socket::bind("127.0.0.1:0").unwrap();
        other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        other.connect(uplink.address()).unwrap();
        let mut buffer = [0; 2000];
        for (end, text) in [(&client, "from one"), (&other, "from another")] {
            end.send(text.as_bytes()).unwrap();
            let (length, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], text.as_bytes());
            server.send_to(&[7; 1452], from).unwrap();
            assert_eq!(end.recv(&mut buffer).unwrap(), 1452);
            assert!(buffer[..1452].iter().all(|byte| *byte == 7));
        }
        drop(uplink);
    }

    #[test]
    fn what_is_lost_does_not_arrive_and_the_rest_does() {
        let (uplink, server, client) = ends(settings("perfect", "30%", NEVER).unwrap());
        for number in 0..200u8 {
            client.send(&[number]).unwrap();
        }
        server.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let mut buffer = [0; 10];
        let count = std::iter::from_fn(|| server.recv(&mut buffer).ok()).count();
        assert!((100..180).contains(&count), "{count}");
        drop(uplink);
    }

    #[test]
    fn wrong_words_are_usage() {
        for (profile, loss) in [("hyperspace", "1%"), ("3g", "much")] {
            let error = settings(profile, loss, NEVER).unwrap_err();
            assert!(error.downcast_ref::<Usage>().is_some(), "{error}");
        }
    }
}
