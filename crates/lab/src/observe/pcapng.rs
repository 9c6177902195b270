//! Captures in pcapng that Wireshark opens (draft-ietf-opsawg-pcapng).
//!
//! Each host has an interface: packets that it sent are outbound there, packets delivered to it inbound, so that a
//! filter such as `frame.interface_name == "host-0"` shows what a capture on that host would. Lost packets are also
//! on an interface `lost`, with the reason as the packet's comment. Own code, because a writer needs three kinds of
//! block; the crate for the format has had no release for years.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read as _, Write};
use std::path::Path;

use super::Observer;
use crate::clock::Clock;
use crate::link::{DropReason, HostId};
use crate::units::Nanos;

const SECTION: u32 = 0x0A0D_0D0A;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const SECRETS: u32 = 10;
/// A key log of TLS (draft-ietf-tls-keylogfile).
const TLS_KEY_LOG: u32 = 0x544C_534B;
/// Packets begin with their IP header.
const LINKTYPE_RAW: u16 = 101;

const OPTION_COMMENT: u16 = 1;
const OPTION_NAME: u16 = 2;
const OPTION_FLAGS: u16 = 2;
const OPTION_RESOLUTION: u16 = 9;
/// Times are in units of 10^-9 s.
const NANOSECONDS: u8 = 9;

const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes a capture. [`Capture::finish`] reports errors of earlier writes.
#[derive(Debug)]
pub struct Capture<W: Write + Send> {
    to: W,
    clock: Clock,
    /// Hosts that are captured, in the order of their interfaces.
    hosts: Vec<HostId>,
    /// Reused for each block.
    block: Vec<u8>,
    failed: Option<io::Error>,
}

impl<W: Write + Send> Capture<W> {
    /// Starts a capture of some hosts' interfaces, with these names.
    pub fn new(to: W, clock: Clock, hosts: &[(HostId, String)]) -> Capture<W> {
        let mut capture = Capture {
            to,
            clock,
            hosts: hosts.iter().map(|(host, _)| *host).collect(),
            block: Vec::new(),
            failed: None,
        };
        capture.block(SECTION, |body| {
            body.extend_from_slice(&0x1A2B_3C4Du32.to_le_bytes());
            body.extend_from_slice(&[1, 0, 0, 0]); // version 1.0
            body.extend_from_slice(&u64::MAX.to_le_bytes()); // section length unknown
        });
        for name in hosts.iter().map(|(_, name)| name.as_str()).chain(["lost"]) {
            capture.block(INTERFACE, |body| {
                body.extend_from_slice(&LINKTYPE_RAW.to_le_bytes());
                body.extend_from_slice(&[0; 6]); // reserved; no limit to packets' length
                option(body, OPTION_NAME, name.as_bytes());
                option(body, OPTION_RESOLUTION, &[NANOSECONDS]);
                option(body, 0, &[]);
            });
        }
        capture
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// Something could not be written, now or before.
    pub fn finish(&mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.to.flush(),
        }
    }

    fn packet(&mut self, interface: usize, at: Nanos, packet: &[u8], kind: u16, note: &[u8]) {
        let time = self.clock.unix(at);
        self.block(PACKET, |body| {
            body.extend_from_slice(&(interface as u32).to_le_bytes());
            body.extend_from_slice(&((time >> 32) as u32).to_le_bytes());
            body.extend_from_slice(&(time as u32).to_le_bytes());
            body.extend_from_slice(&(packet.len() as u32).to_le_bytes());
            body.extend_from_slice(&(packet.len() as u32).to_le_bytes());
            body.extend_from_slice(packet);
            body.resize(body.len().next_multiple_of(4), 0);
            option(body, kind, note);
            option(body, 0, &[]);
        });
    }

    fn block(&mut self, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
        if self.failed.is_none() {
            self.failed = write_block(&mut self.to, &mut self.block, kind, fill).err();
        }
    }

    fn interface(&self, host: HostId) -> Option<usize> {
        self.hosts.iter().position(|known| *known == host)
    }
}

/// Adds the secrets of connections to a finished capture, before the packets: Wireshark decrypts what comes after them.
///
/// # Errors
/// The file cannot be read or written.
pub fn add_secrets(path: &Path, key_log: &[u8]) -> io::Result<()> {
    let mut capture = BufReader::new(File::open(path)?);
    let mut head = Vec::new();
    let next = loop {
        let mut start = [0; 8];
        // A capture without packets has no more.
        if capture.read(&mut start[..1])? == 0 {
            break Vec::new();
        }
        capture.read_exact(&mut start[1..])?;
        let (kind, length) = start.split_at(4);
        let [kind, length] =
            [kind, length].map(|word| word.try_into().map_or(0, u32::from_le_bytes));
        if ![SECTION, INTERFACE].contains(&kind) {
            break start.to_vec();
        }
        head.extend_from_slice(&start);
        capture.by_ref().take(u64::from(length).saturating_sub(8)).read_to_end(&mut head)?;
    };
    let new = path.with_extension("new");
    let mut file = BufWriter::new(File::create(&new)?);
    file.write_all(&head)?;
    write_block(&mut file, &mut Vec::new(), SECRETS, |body| {
        body.extend_from_slice(&TLS_KEY_LOG.to_le_bytes());
        body.extend_from_slice(&(key_log.len() as u32).to_le_bytes());
        body.extend_from_slice(key_log);
        body.resize(body.len().next_multiple_of(4), 0);
    })?;
    file.write_all(&next)?;
    io::copy(&mut capture, &mut file)?;
    file.into_inner()?.sync_all()?;
    fs::rename(&new, path)
}

/// Writes a block: type, length, body, length. `block` is where it is put together.
fn write_block(
    to: &mut impl Write,
    block: &mut Vec<u8>,
    kind: u32,
    fill: impl FnOnce(&mut Vec<u8>),
) -> io::Result<()> {
    block.clear();
    block.extend_from_slice(&kind.to_le_bytes());
    block.extend_from_slice(&[0; 4]);
    fill(block);
    let length = (block.len() as u32 + 4).to_le_bytes();
    block[4..8].copy_from_slice(&length);
    block.extend_from_slice(&length);
    to.write_all(block)
}

/// Appends an option, padded to four bytes; the code 0 ends the options.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&(value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

impl<W: Write + Send> Observer for Capture<W> {
    fn sent(&mut self, at: Nanos, from: HostId, packet: &[u8]) {
        if let Some(interface) = self.interface(from) {
            self.packet(interface, at, packet, OPTION_FLAGS, &OUTBOUND.to_le_bytes());
        }
    }

    fn delivered(&mut self, at: Nanos, to: HostId, packet: &[u8]) {
        if let Some(interface) = self.interface(to) {
            self.packet(interface, at, packet, OPTION_FLAGS, &INBOUND.to_le_bytes());
        }
    }

    fn dropped(&mut self, at: Nanos, _from: HostId, reason: DropReason, packet: &[u8]) {
        let comment = format!("lost: {}", reason.name());
        self.packet(self.hosts.len(), at, packet, OPTION_COMMENT, comment.as_bytes());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Type and body of each block, after checking that both lengths agree.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, &[u8])> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let length = word(&bytes[4..]) as usize;
            assert_eq!((length % 4, word(&bytes[length - 4..]) as usize), (0, length));
            blocks.push((word(bytes), &bytes[8..length - 4]));
            bytes = &bytes[length..];
        }
        blocks
    }

    #[test]
    fn blocks_are_whole_and_packets_are_where_they_belong() {
        let mut written = Vec::new();
        let hosts = [(HostId(0), "client".to_owned()), (HostId(3), "broker".to_owned())];
        let mut capture = Capture::new(&mut written, Clock::start(), &hosts);
        capture.sent(5, HostId(0), b"\x45odd");
        capture.delivered(6, HostId(3), b"\x45odd length");
        capture.delivered(6, HostId(1), b"nobody captures this host");
        capture.dropped(7, HostId(0), DropReason::Random, b"\x45");
        capture.finish().unwrap();
        let blocks = blocks(&written);
        let kinds: Vec<_> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION, INTERFACE, INTERFACE, INTERFACE, PACKET, PACKET, PACKET]);
        let interfaces: Vec<_> = blocks[4..].iter().map(|(_, body)| body[0]).collect();
        assert_eq!(interfaces, [0, 1, 2]);
        assert_eq!(blocks[4].1[20..25], *b"\x45odd\x02");
        assert!(blocks[6].1.windows(12).any(|text| text == b"lost: random"));
    }

    #[test]
    fn secrets_are_before_the_packets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcapng");
        let hosts = [(HostId(0), "client".to_owned())];
        let mut capture = Capture::new(File::create(&path).unwrap(), Clock::start(), &hosts);
        add_secrets(&path, b"none").unwrap();
        assert_eq!(blocks(&fs::read(&path).unwrap()).last().unwrap().0, SECRETS);
        let mut capture = {
            capture.finish().unwrap();
            Capture::new(File::create(&path).unwrap(), Clock::start(), &hosts)
        };
        capture.sent(5, HostId(0), b"\x45odd");
        capture.sent(6, HostId(0), b"\x45even");
        capture.finish().unwrap();
        let without = fs::read(&path).unwrap();
        add_secrets(&path, b"CLIENT_RANDOM 00 11\n").unwrap();
        let with = fs::read(&path).unwrap();
        let (mut blocks, before) = (blocks(&with), blocks(&without));
        let (kind, body) = blocks.remove(3);
        assert_eq!(
            (kind, &body[..8], &body[8..28]),
            (SECRETS, b"KSLT\x14\0\0\0".as_slice(), b"CLIENT_RANDOM 00 11\n".as_slice())
        );
        assert_eq!(blocks, before);
    }

    #[test]
    fn a_full_disk_is_told() {
        let mut room = [0; 100];
        let mut capture = Capture::new(&mut room[..], Clock::start(), &[]);
        capture.dropped(7, HostId(0), DropReason::Random, &[0; 200]);
        assert!(capture.finish().is_err());
    }
}
