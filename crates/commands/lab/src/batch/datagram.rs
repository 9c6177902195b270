//! Transfers by datagrams, with or without DTLS. The client's first datagram is a request (`get`) or an announcement
//! (`put`); the rest are numbered parts. Only that first datagram is retransmitted: this is what an application over
//! plain UDP gets.
//!
//! Every datagram begins with a kind (1 byte), the transfer's number, the part's number and the number of parts (4
//! bytes each, big endian).

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use fulmar_coap::dtls::{Certificate, Credentials, DtlsSession};

use super::{Files, Job};
use crate::exit::Usage;

/// Bytes of a part: with all headers below Ethernet's 1500.
const PART: usize = 1300;
const HEADER: usize = 13;
const LARGEST: usize = 2048;

const GET: u8 = 1;
const PART_OF: u8 = 2;
const GOT: u8 = 3;

/// Time after which a request is repeated, and how often.
const ASK_AGAIN: Duration = Duration::from_millis(500);
const ASKS: u32 = 4;
/// Silence after which no more parts are expected.
const SILENCE: Duration = Duration::from_millis(500);
/// Interval at which the server checks its timers while no datagram arrives.
const TICK: Duration = Duration::from_millis(5);
/// The most clients of the server; the one silent for longest is dropped first.
const CLIENTS: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    kind: u8,
    transfer: u32,
    part: u32,
    parts: u32,
}

impl Header {
    fn read(datagram: &[u8]) -> Option<Header> {
        let (header, _) = datagram.split_first_chunk::<HEADER>()?;
        let number = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        Some(Header { kind: header[0], transfer: number(1), part: number(5), parts: number(9) })
    }

    /// The header followed by `filling` bytes.
    fn write(self, filling: usize) -> Vec<u8> {
        let mut datagram = vec![self.kind];
        for number in [self.transfer, self.part, self.parts] {
            datagram.extend(number.to_be_bytes());
        }
        datagram.resize(HEADER + filling, b'x');
        datagram
    }
}

fn parts(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PART as u64)).unwrap_or(u32::MAX)
}

/// Reads certificate and key for DTLS, which requires them of clients, too. Certificates of peers are not verified.
pub(super) fn identity(files: &Files) -> anyhow::Result<Certificate> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else {
        return Err(Usage("DTLS needs --cert and --key".to_owned()).into());
    };
    let certificate = fulmar_certs::files::read_chain(cert)?.swap_remove(0).to_vec();
    let key = fulmar_certs::files::read_key(key)?.secret_der().to_vec();
    Ok(Certificate { certificate, key })
}

/// One transfer over its own socket, and DTLS session.
pub(super) fn transfer(job: &Job, identity: Option<&Certificate>) -> anyhow::Result<()> {
    let socket = super::socket(job)?;
    socket.connect(job.server).with_context(|| job.server.to_string())?;
    let end = Instant::now() + job.patience;
    let credentials = identity.map(|own| Credentials::Certificate(own.clone()));
    let session = credentials.map(|own| DtlsSession::client(&own, Instant::now())).transpose()?;
    let mut channel = Channel { socket, session };
    channel.connect(end)?;
    let transfer = fastrand_number();
    let parts = parts(job.bytes);
    let done = if job.put {
        send_parts(&mut channel, transfer, parts, end)
    } else {
        get(&mut channel, transfer, parts, end)
    };
    channel.close();
    done
}

/// A number that an earlier transfer's late datagrams do not have.
fn fastrand_number() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u32
}

fn get(channel: &mut Channel, transfer: u32, parts: u32, end: Instant) -> anyhow::Result<()> {
    let ask = Header { kind: GET, transfer, part: 0, parts };
    let mut seen = vec![false; parts as usize];
    let (mut left, mut asked) = (parts, 0);
    let mut until = Instant::now();
    while left > 0 {
        let now = Instant::now();
        if now >= until {
            if left < parts || asked == ASKS || now >= end {
                bail!("{left} of {parts} parts did not arrive");
            }
            channel.send(&ask.write(0))?;
            asked += 1;
            until = now + ASK_AGAIN;
        }
        let Some(datagram) = channel.receive(until.min(end))? else { continue };
        let Some(header) = Header::read(&datagram) else { continue };
        if header.kind != PART_OF || header.transfer != transfer {
            continue;
        }
        if let Some(seen) = seen.get_mut(header.part as usize).filter(|seen| !**seen) {
            *seen = true;
            left -= 1;
        }
        until = Instant::now() + SILENCE;
    }
    Ok(())
}

fn send_parts(
    channel: &mut Channel,
    transfer: u32,
    parts: u32,
    end: Instant,
) -> anyhow::Result<()> {
    for part in 0..parts {
        channel.send(&Header { kind: PART_OF, transfer, part, parts }.write(PART))?;
    }
    // The server reports what it has received when it has everything, or when no more arrives.
    let end = end.min(Instant::now() + 4 * SILENCE);
    loop {
        let Some(datagram) = channel.receive(end)? else { bail!("the server did not answer") };
        match Header::read(&datagram) {
            Some(Header { kind: GOT, transfer: number, part: got, .. }) if number == transfer => {
                if got < parts {
                    bail!("{} of {parts} parts did not arrive", parts - got);
                }
                return Ok(());
            }
            _ => {}
        }
    }
}

/// A client's socket, with DTLS or without.
struct Channel {
    socket: UdpSocket,
    session: Option<DtlsSession>,
}

impl Channel {
    fn connect(&mut self, end: Instant) -> anyhow::Result<()> {
        while self.session.as_ref().is_some_and(|session| !session.is_open()) {
            if Instant::now() >= end {
                bail!("no DTLS connection in time");
            }
            self.receive(Instant::now() + TICK)?;
        }
        Ok(())
    }

    fn send(&mut self, datagram: &[u8]) -> anyhow::Result<()> {
        let Some(session) = &mut self.session else {
            // A full buffer loses the datagram, as the network might.
            drop(self.socket.send(datagram));
            return Ok(());
        };
        session.send(datagram)?;
        self.flush();
        Ok(())
    }

    /// The next datagram of this transfer, until `until`.
    fn receive(&mut self, until: Instant) -> anyhow::Result<Option<Vec<u8>>> {
        let mut buffer = [0; LARGEST];
        loop {
            self.flush();
            if let Some(datagram) = self.session.as_mut().and_then(DtlsSession::poll_received) {
                return Ok(Some(datagram));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let wait = if self.session.is_some() { left.min(TICK) } else { left };
            self.socket.set_read_timeout(Some(wait.max(Duration::from_micros(1))))?;
            let Ok(len) = self.socket.recv(&mut buffer) else {
                if let Some(session) = &mut self.session {
                    session.on_deadline(Instant::now())?;
                }
                continue;
            };
            match &mut self.session {
                None => return Ok(Some(buffer[..len].to_vec())),
                Some(session) => {
                    session.receive(Instant::now(), &buffer[..len])?;
                }
            }
        }
    }

    fn flush(&mut self) {
        while let Some(datagram) = self.session.as_mut().and_then(DtlsSession::poll_transmit) {
            drop(self.socket.send(&datagram));
        }
    }

    fn close(mut self) {
        if let Some(session) = &mut self.session {
            session.close();
        }
        self.flush();
    }
}

/// The server's state of a client.
struct Client {
    session: Option<DtlsSession>,
    heard: Instant,
    /// The transfer being received, and which of its parts have arrived.
    coming: Option<(u32, Vec<bool>)>,
}

/// Serves transfers on a UDP port until the process ends.
pub(super) fn serve(at: SocketAddr, identity: Option<&Certificate>) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(at).with_context(|| at.to_string())?;
    socket.set_read_timeout(Some(TICK))?;
    println!("ready udp={}", socket.local_addr()?);
    let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
    let mut buffer = [0; LARGEST];
    loop {
        if let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            if !clients.contains_key(&peer) {
                forget_one(&mut clients);
                let begin = |own| {
                    DtlsSession::server(own, None, false, &buffer[..len], false, Instant::now())
                };
                let session = identity.map(begin).transpose()?;
                clients.insert(peer, Client { session, heard: Instant::now(), coming: None });
            }
            let Some(client) = clients.get_mut(&peer) else { continue };
            client.heard = Instant::now();
            // A client's error ends its session, not the server.
            if client.datagram(&socket, peer, &buffer[..len]).is_err() {
                clients.remove(&peer);
            }
        }
        clients.retain(|peer, client| client.on_time(&socket, *peer).is_ok());
    }
}

fn forget_one(clients: &mut HashMap<SocketAddr, Client>) {
    if clients.len() >= CLIENTS {
        let oldest = clients.iter().min_by_key(|(_, client)| client.heard).map(|(peer, _)| *peer);
        oldest.and_then(|peer| clients.remove(&peer));
    }
}

impl Client {
    fn datagram(
        &mut self,
        socket: &UdpSocket,
        peer: SocketAddr,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let Some(session) = &mut self.session else {
            return self.message(socket, peer, bytes);
        };
        session.receive(Instant::now(), bytes)?;
        self.flush(socket, peer);
        while let Some(message) = self.session.as_mut().and_then(DtlsSession::poll_received) {
            self.message(socket, peer, &message)?;
        }
        Ok(())
    }

    fn message(
        &mut self,
        socket: &UdpSocket,
        peer: SocketAddr,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let Some(header) = Header::read(bytes) else { return Ok(()) };
        if u64::from(header.parts) > super::MAX_BYTES / PART as u64 + 1 {
            return Ok(());
        }
        match header.kind {
            GET => {
                for part in 0..header.parts {
                    let datagram = Header { kind: PART_OF, part, ..header }.write(PART);
                    self.send(socket, peer, &datagram)?;
                }
            }
            PART_OF => {
                let begun =
                    self.coming.as_ref().is_some_and(|(number, _)| *number == header.transfer);
                if !begun {
                    self.coming = Some((header.transfer, vec![false; header.parts as usize]));
                }
                let Some((_, seen)) = &mut self.coming else { return Ok(()) };
                if let Some(seen) = seen.get_mut(header.part as usize) {
                    *seen = true;
                }
                if seen.iter().all(|seen| *seen) {
                    self.report_arrived(socket, peer)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Reports how many parts have arrived.
    fn report_arrived(&mut self, socket: &UdpSocket, peer: SocketAddr) -> anyhow::Result<()> {
        let Some((transfer, seen)) = self.coming.take() else { return Ok(()) };
        let got = seen.iter().filter(|seen| **seen).count() as u32;
        let answer = Header { kind: GOT, transfer, part: got, parts: seen.len() as u32 };
        self.send(socket, peer, &answer.write(0))
    }

    fn on_time(&mut self, socket: &UdpSocket, peer: SocketAddr) -> anyhow::Result<()> {
        if self.coming.is_some() && self.heard.elapsed() >= SILENCE {
            self.report_arrived(socket, peer)?;
        }
        if let Some(session) = &mut self.session {
            session.on_deadline(Instant::now())?;
            self.flush(socket, peer);
        }
        Ok(())
    }

    fn send(&mut self, socket: &UdpSocket, peer: SocketAddr, bytes: &[u8]) -> anyhow::Result<()> {
        match &mut self.session {
            None => drop(socket.send_to(bytes, peer)),
            Some(session) => {
                session.send(bytes)?;
                self.flush(socket, peer);
            }
        }
        Ok(())
    }

    fn flush(&mut self, socket: &UdpSocket, peer: SocketAddr) {
        while let Some(datagram) = self.session.as_mut().and_then(DtlsSession::poll_transmit) {
            drop(socket.send_to(&datagram, peer));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Two sockets that talk to each other: the server's, and a client's with its address.
    fn sockets() -> (UdpSocket, UdpSocket, SocketAddr) {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let address = client.local_addr().unwrap();
        (server, client, address)
    }

    fn nobody() -> Client {
        Client { session: None, heard: Instant::now(), coming: None }
    }

    fn next(socket: &UdpSocket) -> Header {
        let mut buffer = [0; LARGEST];
        let len = socket.recv(&mut buffer).unwrap();
        Header::read(&buffer[..len]).unwrap()
    }

    #[test]
    fn headers_are_read_as_written() {
        let header = Header { kind: GOT, transfer: 0x0102_0304, part: 5, parts: u32::MAX };
        let datagram = header.write(7);
        assert_eq!(datagram.len(), HEADER + 7);
        assert_eq!(datagram[..5], [GOT, 1, 2, 3, 4]);
        assert_eq!(Header::read(&datagram), Some(header));
        assert_eq!(Header::read(&datagram[..HEADER - 1]), None);
    }

    #[test]
    fn bytes_are_cut_into_parts() {
        let part = PART as u64;
        let counts = [1, part, part + 1, 100_000].map(parts);
        assert_eq!(counts, [1, 1, 2, 77]);
    }

    #[test]
    fn a_server_sends_every_part_once_and_no_more_than_is_sensible() {
        let (server, client, peer) = sockets();
        let mut state = nobody();
        let ask = Header { kind: GET, transfer: 9, part: 0, parts: 3 };
        let greedy = Header { parts: u32::MAX, ..ask };
        state.message(&server, peer, &greedy.write(0)).unwrap();
        state.message(&server, peer, &ask.write(0)).unwrap();
        let got = [next(&client), next(&client), next(&client)];
        assert_eq!(got.map(|header| header.part), [0, 1, 2]);
        assert!(got.iter().all(|header| (header.kind, header.transfer) == (PART_OF, 9)));
    }

    #[test]
    fn a_server_tells_what_it_got_when_it_has_all_or_no_more_comes() {
        let (server, client, peer) = sockets();
        let mut state = nobody();
        let first = Header { kind: PART_OF, transfer: 1, part: 0, parts: 2 };
        for part in [0, 0, 1] {
            state.message(&server, peer, &Header { part, ..first }.write(PART)).unwrap();
        }
        assert_eq!(next(&client), Header { kind: GOT, part: 2, ..first });
        // Of the next transfer a part is lost.
        state.message(&server, peer, &Header { transfer: 2, ..first }.write(PART)).unwrap();
        state.on_time(&server, peer).unwrap();
        assert!(state.coming.is_some(), "more may come");
        state.heard = Instant::now().checked_sub(SILENCE).unwrap();
        state.on_time(&server, peer).unwrap();
        assert_eq!(next(&client), Header { kind: GOT, transfer: 2, part: 1, ..first });
        assert!(state.coming.is_none());
    }

    #[test]
    fn a_part_that_is_lost_makes_a_transfer_fail() {
        let (server, client, _) = sockets();
        let serving = std::thread::spawn(move || {
            let mut buffer = [0; LARGEST];
            let (len, peer) = server.recv_from(&mut buffer).unwrap();
            let ask = Header::read(&buffer[..len]).unwrap();
            // A part of another transfer counts as little as a duplicate.
            let late = Header { kind: PART_OF, transfer: ask.transfer ^ 1, part: 1, ..ask };
            let parts = [0, 0, 2].map(|part| Header { kind: PART_OF, part, ..ask });
            for header in [&parts[..], &[late]].concat() {
                server.send_to(&header.write(PART), peer).unwrap();
            }
        });
        let mut channel = Channel { socket: client, session: None };
        let end = Instant::now() + Duration::from_secs(20);
        let error = get(&mut channel, 7, 3, end).unwrap_err();
        assert_eq!(error.to_string(), "1 of 3 parts did not arrive");
        serving.join().unwrap();
    }

    #[test]
    fn the_client_silent_for_longest_is_forgotten() {
        let begun = Instant::now();
        let mut clients: HashMap<SocketAddr, Client> = (0..CLIENTS as u16)
            .map(|port| {
                let heard = begun + Duration::from_secs(u64::from(port.abs_diff(7)));
                (([127, 0, 0, 1], port).into(), Client { heard, ..nobody() })
            })
            .collect();
        forget_one(&mut clients);
        assert_eq!(clients.len(), CLIENTS - 1);
        assert!(!clients.contains_key(&([127, 0, 0, 1], 7).into()));
        forget_one(&mut clients);
        assert_eq!(clients.len(), CLIENTS - 1, "there is room");
    }
}
