//! The board as the sensor sees it.

use core::ops::Range;

use fulmar_sensor::{Board, Settings, Word};
use fulmar_tiny::Instant;
use fulmar_tiny_ip::{HEADERS, Host, Network, Received};

use crate::clock::Clock;
use crate::registers::{PORT_F_DIGITAL, PORT_F_DIRECTION, PORT_F_PIN0, RCGC2};
use crate::{ethernet, host, uart};

/// Longest time to wait for the network: an address and the gateway's answer.
const NETWORK_MS: u32 = 20_000;
/// Local ports are the dynamic ones (RFC 6335 section 6).
const FIRST_PORT: u16 = 49_152;

/// The LM3S6965 evaluation board.
pub(crate) struct Lm3s6965 {
    host: Host,
    #[cfg(feature = "dhcp")]
    dhcp: Option<fulmar_tiny_ip::dhcp::Client>,
    /// Readings so far.
    readings: u32,
}

impl Lm3s6965 {
    /// Switches Ethernet and LED on.
    pub(crate) fn start(settings: &Settings<'_>) -> Lm3s6965 {
        ethernet::start(settings.mac);
        RCGC2.set(1 << 5);
        cortex_m::asm::delay(8);
        PORT_F_DIRECTION.set(1);
        PORT_F_DIGITAL.set(1);
        let network = settings.network.map(|fixed| Network {
            address: fixed.address,
            prefix_bits: fixed.prefix_bits,
            gateway: fixed.gateway,
        });
        let (server, port) = settings.server;
        let host = Host::new(settings.mac, network.unwrap_or_default(), 0, server, port);
        Lm3s6965 {
            host,
            #[cfg(feature = "dhcp")]
            dhcp: network
                .is_none()
                .then(|| fulmar_tiny_ip::dhcp::Client::new(random(), Clock::now_ms())),
            readings: 0,
        }
    }

    /// Sends the frames that DHCP and ARP have ready.
    fn send_queries(&mut self, frame: &mut [u8]) {
        let now_ms = Clock::now_ms();
        #[cfg(feature = "dhcp")]
        if let Some(dhcp) = &mut self.dhcp {
            if let Some(len) = dhcp.poll_transmit(&mut self.host, now_ms, frame) {
                ethernet::send(&frame[..len]);
            }
            if !dhcp.has_address() {
                return;
            }
        }
        if let Some(len) = self.host.next_query(now_ms, frame) {
            ethernet::send(&frame[..len]);
        }
    }
}

impl Board for Lm3s6965 {
    const HEADROOM: usize = HEADERS;

    fn now(&mut self) -> Instant {
        Instant::from_millis(Clock::now_ms())
    }

    fn calendar_s(&mut self) -> u32 {
        host::seconds()
    }

    fn entropy(&mut self, bytes: &mut [u8; 32]) {
        // Nothing is better than a connection without secrets.
        assert!(host::entropy(bytes), "no entropy");
    }

    fn doze(&mut self) {
        Clock::doze();
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<Range<usize>> {
        loop {
            let len = ethernet::receive(buffer)?;
            let frame = &mut buffer[..len];
            #[cfg(feature = "dhcp")]
            if let Some(dhcp) = &mut self.dhcp
                && dhcp.receive(&mut self.host, Clock::now_ms(), frame)
            {
                continue;
            }
            match self.host.receive(frame) {
                Received::Datagram { payload, .. } => return Some(payload),
                Received::Answer(len) => {
                    ethernet::send(&frame[..len]);
                }
                Received::Nothing => {}
            }
        }
    }

    fn send(&mut self, buffer: &mut [u8], len: usize) -> bool {
        self.host.wrap(buffer, len).is_some_and(|len| ethernet::send(&buffer[..len]))
    }

    fn begin(&mut self, buffer: &mut [u8]) -> bool {
        let begun_ms = Clock::now_ms();
        self.host.set_port(FIRST_PORT + (random() % (1 << 14)) as u16);
        while !self.host.is_ready() {
            if Clock::now_ms().wrapping_sub(begun_ms) > NETWORK_MS {
                return false;
            }
            self.send_queries(buffer);
            self.doze();
            self.receive(buffer);
        }
        true
    }

    /// This board has no sensor: a temperature is made up, from the number of readings.
    fn measure(&mut self, text: &mut [u8]) -> usize {
        self.readings += 1;
        let mut digits = [0; 10];
        let mut len = 0;
        let tenths = 200 + self.readings * 7 % 50;
        let parts: [&[u8]; 3] = [&[], b".", &[b'0' + (tenths % 10) as u8]];
        for part in [crate::decimal(tenths / 10, &mut digits), parts[1], parts[2]] {
            text[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        len
    }

    fn obey(&mut self, command: &[u8]) -> bool {
        let lit = match command {
            b"led on" => 1,
            b"led off" => 0,
            _ => return false,
        };
        PORT_F_PIN0.write(lit);
        true
    }

    fn log(&mut self, words: &[Word<'_>]) {
        uart::line(words);
    }
}

fn random() -> u32 {
    let mut bytes = [0; 32];
    assert!(host::entropy(&mut bytes), "no entropy");
    let [a, b, c, d, ..] = bytes;
    u32::from_le_bytes([a, b, c, d])
}
