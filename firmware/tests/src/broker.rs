//! As much of a broker as the client needs to be answered: it acknowledges, and gives every subscriber a
//! command. It refuses nothing and routes nothing.

use std::collections::BTreeMap;

use quinn_proto::{Connection, Dir, Event, StreamEvent, StreamId};

/// What the broker has seen of one connection.
#[derive(Default)]
pub struct Broker {
    input: BTreeMap<StreamId, Vec<u8>>,
    output: BTreeMap<StreamId, Vec<u8>>,
    /// Topic and payload of what was published.
    pub published: Vec<(String, Vec<u8>)>,
    /// How many commands were acknowledged.
    pub acknowledged: u32,
    pub pings: u32,
    pub disconnected: bool,
    /// Why the connection ended, in words.
    pub lost: Option<String>,
    /// Given to each subscriber.
    pub command: Vec<u8>,
}

fn block(bytes: &[u8]) -> &[u8] {
    &bytes[2..2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))]
}

/// The length of a packet's fixed header and of the rest.
fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().skip(1) {
        value |= usize::from(byte & 0x7f) << (7 * (at - 1));
        if byte & 0x80 == 0 {
            return (bytes.len() > at + value).then_some((at + 1, value));
        }
    }
    None
}

impl Broker {
    /// Reads what came, answers, and writes what there is room for.
    pub fn serve(&mut self, connection: &mut Connection) {
        while let Some(event) = connection.poll() {
            match event {
                Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {}
                Event::ConnectionLost { reason } => self.lost = Some(reason.to_string()),
                _ => {}
            }
        }
        while let Some(id) = connection.streams().accept(Dir::Bi) {
            self.input.entry(id).or_default();
        }
        for (id, input) in &mut self.input {
            let mut stream = connection.recv_stream(*id);
            if let Ok(mut chunks) = stream.read(true) {
                while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                    input.extend_from_slice(&chunk.bytes);
                }
                let _ = chunks.finalize().should_transmit();
            }
        }
        let ids: Vec<StreamId> = self.input.keys().copied().collect();
        for id in ids {
            self.answer(id);
        }
        // quinn would send an empty frame for nothing written.
        for (id, output) in self.output.iter_mut().filter(|(_, output)| !output.is_empty()) {
            if let Ok(count) = connection.send_stream(*id).write(output) {
                output.drain(..count);
            }
        }
    }

    fn answer(&mut self, id: StreamId) {
        let input = self.input.entry(id).or_default();
        let mut packets = Vec::new();
        while let Some((head, rest)) = length(input) {
            packets.push((input[0], input[head..head + rest].to_vec()));
            input.drain(..head + rest);
        }
        for (first, body) in packets {
            let mut out = Vec::new();
            match first >> 4 {
                1 => out.extend([0x20, 3, 0, 0, 0]),
                3 => {
                    let topic = block(&body);
                    let mut at = 2 + topic.len();
                    if first & 6 != 0 {
                        out.extend([0x40, 2, body[at], body[at + 1]]);
                        at += 2;
                    }
                    let topic = String::from_utf8_lossy(topic).into_owned();
                    self.published.push((topic, body[at + 1..].to_vec()));
                }
                4 => self.acknowledged += 1,
                8 => {
                    out.extend([0x90, 4, body[0], body[1], 0, 1]);
                    let filter = block(&body[3..]);
                    let length = 2 + filter.len() + 3 + self.command.len();
                    out.push(0x32);
                    let mut rest = length;
                    while rest >= 0x80 {
                        out.push(rest as u8 | 0x80);
                        rest >>= 7;
                    }
                    out.push(rest as u8);
                    out.extend((filter.len() as u16).to_be_bytes());
                    out.extend(filter);
                    out.extend([0, 7, 0]);
                    out.extend(&self.command);
                }
                12 => {
                    self.pings += 1;
                    out.extend([0xd0, 0]);
                }
                14 => self.disconnected = true,
                other => panic!("the client sent a packet of type {other}"),
            }
            self.output.entry(id).or_default().extend(out);
        }
    }
}
