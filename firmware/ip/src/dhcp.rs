//! An address by DHCP (RFC 2131): discover, request, and renewal by asking again. One server's
//! offer is taken, the first; options other than mask, router, lease and server are ignored. There
//! is no release and no check whether somebody else uses the address.

use crate::host::{Address, Host, Network};
use crate::{HEADERS, Received};

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;
/// Length of our messages, without headers: BOOTP's fixed part, the cookie, room for options.
/// Shorter ones than 300 bytes are dropped by some relays (RFC 1542 section 2.1).
const MESSAGE: usize = 300;
/// Where things are in a message.
const YOUR_ADDRESS: usize = 16;
const HARDWARE: usize = 28;
const COOKIE: usize = 236;
const OPTIONS: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];

const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;

/// Time between two tries, at first; it doubles up to [`MAX_RETRY_MS`].
const FIRST_RETRY_MS: u32 = 1000;
const MAX_RETRY_MS: u32 = 16_000;
/// Longest lease that is believed, in seconds, half of which fits a clock of 32 bits.
const MAX_LEASE_S: u32 = 7 * 86_400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Discovering,
    /// An offer is being asked for.
    Requesting {
        address: Address,
        server: Address,
    },
    /// There is a lease; when to ask for it again.
    Bound {
        address: Address,
        server: Address,
        renew_ms: u32,
    },
}

/// A client for one device.
#[derive(Debug)]
pub struct Client {
    step: Step,
    transaction: u32,
    /// When to send again, and how long after that.
    due_ms: u32,
    retry_ms: u32,
    leased: bool,
}

/// A server's message, as far as it matters.
struct Message {
    kind: u8,
    your_address: Address,
    server: Address,
    mask: Address,
    router: Address,
    lease_s: u32,
}

impl Client {
    /// A client that begins at `now_ms`; `transaction` should be random, so that devices that are
    /// switched on together are told apart.
    #[must_use]
    pub const fn new(transaction: u32, now_ms: u32) -> Client {
        Client {
            step: Step::Discovering,
            transaction,
            due_ms: now_ms,
            retry_ms: FIRST_RETRY_MS,
            leased: false,
        }
    }

    /// Whether the device has an address: also while its lease is being renewed.
    #[must_use]
    pub const fn has_address(&self) -> bool {
        self.leased
    }

    /// Writes the frame that is to be sent at `now_ms`, and returns its length. `frame` holds 342 bytes at least.
    pub fn poll_transmit(
        &mut self,
        host: &mut Host,
        now_ms: u32,
        frame: &mut [u8],
    ) -> Option<usize> {
        if let Step::Bound { address, server, renew_ms } = self.step {
            if !reached(now_ms, renew_ms) {
                return None;
            }
            // The address stays in use while it is asked for again.
            self.step = Step::Requesting { address, server };
            (self.due_ms, self.retry_ms) = (now_ms, FIRST_RETRY_MS);
        }
        if !reached(now_ms, self.due_ms) {
            return None;
        }
        if self.retry_ms > MAX_RETRY_MS {
            // Nobody answers a request: begin anew.
            (self.step, self.retry_ms, self.leased) = (Step::Discovering, FIRST_RETRY_MS, false);
        }
        self.due_ms = now_ms.wrapping_add(self.retry_ms);
        self.retry_ms = match self.step {
            Step::Discovering => (self.retry_ms * 2).min(MAX_RETRY_MS),
            _ => self.retry_ms * 2,
        };
        self.write(host, frame.get_mut(HEADERS..HEADERS + MESSAGE)?);
        host.wrap_broadcast(frame, MESSAGE, [CLIENT_PORT, SERVER_PORT])
    }

    fn write(&self, host: &Host, message: &mut [u8]) {
        message.fill(0);
        // A request over Ethernet; the server is to broadcast, because nothing else reaches us yet.
        message[..4].copy_from_slice(&[1, 1, 6, 0]);
        message[4..8].copy_from_slice(&self.transaction.to_be_bytes());
        message[10] = 0x80;
        message[HARDWARE..HARDWARE + 6].copy_from_slice(&host.mac());
        message[COOKIE..OPTIONS].copy_from_slice(&MAGIC);
        let kind = if self.step == Step::Discovering { DISCOVER } else { REQUEST };
        // Message type; wanted: mask, router.
        let options = [53, 1, kind, 55, 2, 1, 3];
        let mut at = OPTIONS + options.len();
        message[OPTIONS..at].copy_from_slice(&options);
        if let Step::Requesting { address, server } = self.step {
            for (option, value) in [(50, address), (54, server)] {
                message[at..at + 2].copy_from_slice(&[option, 4]);
                message[at + 2..at + 6].copy_from_slice(&value);
                at += 6;
            }
        }
        message[at] = 255;
    }

    /// Takes a frame; true if it was a DHCP server's. `host` gets its network from it.
    pub fn receive(&mut self, host: &mut Host, now_ms: u32, frame: &[u8]) -> bool {
        let Received::Datagram { from: (_, SERVER_PORT), payload } =
            host.receive_on(frame, CLIENT_PORT)
        else {
            return false;
        };
        if let Some(message) = frame.get(payload).and_then(|bytes| self.parse(host, bytes)) {
            self.on_message(host, now_ms, &message);
        }
        true
    }

    fn on_message(&mut self, host: &mut Host, now_ms: u32, message: &Message) {
        match (self.step, message.kind) {
            (Step::Discovering, OFFER) => {
                let (address, server) = (message.your_address, message.server);
                self.step = Step::Requesting { address, server };
                (self.due_ms, self.retry_ms) = (now_ms, FIRST_RETRY_MS);
            }
            (Step::Requesting { address, server }, ACK)
                if address == message.your_address && server == message.server =>
            {
                // T1 (section 4.4.5): half the lease.
                let lease_s = message.lease_s.clamp(60, MAX_LEASE_S);
                let renew_ms = now_ms.wrapping_add(lease_s * 500);
                self.step = Step::Bound { address, server, renew_ms };
                self.leased = true;
                let prefix_bits = u32::from_be_bytes(message.mask).leading_ones() as u8;
                host.set_network(Network { address, prefix_bits, gateway: message.router });
            }
            (Step::Requesting { server, .. }, NAK) if server == message.server => {
                *self = Client::new(self.transaction.wrapping_add(1), now_ms);
            }
            _ => {}
        }
    }

    /// A server's answer to us, checked.
    fn parse(&self, host: &Host, bytes: &[u8]) -> Option<Message> {
        let fixed = bytes.get(..OPTIONS)?;
        let ours = fixed[4..8] == self.transaction.to_be_bytes()
            && fixed[HARDWARE..HARDWARE + 6] == host.mac();
        if fixed[0] != 2 || !ours || fixed[COOKIE..] != MAGIC {
            return None;
        }
        let mut your_address = [0; 4];
        your_address.copy_from_slice(&fixed[YOUR_ADDRESS..YOUR_ADDRESS + 4]);
        let mut message = Message {
            kind: 0,
            your_address,
            server: [0; 4],
            mask: [255, 255, 255, 0],
            router: [0; 4],
            lease_s: 3600,
        };
        let mut rest = &bytes[OPTIONS..];
        while let [option, tail @ ..] = rest {
            rest = tail;
            if *option == 0 {
                continue;
            }
            let [len, tail @ ..] = rest else { break };
            let Some((value, tail)) = tail.split_at_checked(usize::from(*len)) else { break };
            rest = tail;
            let first = value.first_chunk::<4>();
            match (option, first, value) {
                (53, _, [kind]) => message.kind = *kind,
                (54, Some(server), _) => message.server = *server,
                (1, Some(mask), _) => message.mask = *mask,
                (3, Some(router), _) => message.router = *router,
                (51, Some(lease), _) => message.lease_s = u32::from_be_bytes(*lease),
                _ => {}
            }
        }
        let usable = message.kind == NAK || !matches!(your_address[0], 0 | 127 | 224..);
        usable.then_some(message)
    }
}

/// Whether a moment of the wrapping clock has come.
fn reached(now_ms: u32, at_ms: u32) -> bool {
    now_ms.wrapping_sub(at_ms) < u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const ADDRESS: Address = [10, 0, 2, 15];
    const SERVER: Address = [10, 0, 2, 2];

    fn host() -> Host {
        Host::new(MAC, Network::default(), 40_000, [192, 0, 2, 7], 14567)
    }

    /// A server's message of this kind.
    fn answer(kind: u8, transaction: u32, options: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADERS + MESSAGE];
        let message = &mut frame[HEADERS..];
        message[0] = 2;
        message[4..8].copy_from_slice(&transaction.to_be_bytes());
        message[YOUR_ADDRESS..YOUR_ADDRESS + 4].copy_from_slice(&ADDRESS);
        message[HARDWARE..HARDWARE + 6].copy_from_slice(&MAC);
        message[COOKIE..OPTIONS].copy_from_slice(&MAGIC);
        let start = [53, 1, kind, 54, 4, SERVER[0], SERVER[1], SERVER[2], SERVER[3]];
        message[OPTIONS..OPTIONS + 9].copy_from_slice(&start);
        message[OPTIONS + 9..OPTIONS + 9 + options.len()].copy_from_slice(options);
        message[OPTIONS + 9 + options.len()] = 255;
        let network = Network { address: SERVER, prefix_bits: 24, gateway: [0; 4] };
        let mut server = Host::new([2; 6], network, SERVER_PORT, [0; 4], 0);
        server.wrap_broadcast(&mut frame, MESSAGE, [SERVER_PORT, CLIENT_PORT]).expect("fits");
        frame
    }

    /// The kind of message in a frame of ours.
    fn kind(frame: &[u8]) -> u8 {
        frame[HEADERS + OPTIONS + 2]
    }

    const GOOD: [u8; 18] = [1, 4, 255, 255, 254, 0, 3, 4, 10, 0, 2, 1, 51, 4, 0, 0, 0, 100];

    fn bound() -> (Client, Host) {
        let (mut client, mut host, mut frame) = (Client::new(7, 0), host(), [0; 400]);
        client.poll_transmit(&mut host, 0, &mut frame).expect("discover");
        assert!(client.receive(&mut host, 5, &answer(OFFER, 7, &GOOD)));
        client.poll_transmit(&mut host, 5, &mut frame).expect("request");
        assert_eq!(kind(&frame), REQUEST);
        assert!(client.receive(&mut host, 9, &answer(ACK, 7, &GOOD)));
        assert!(client.has_address());
        (client, host)
    }

    #[test]
    fn discover_request_and_the_network_it_leads_to() {
        let (_, mut host) = bound();
        let mut frame = [0; 60];
        host.ask(10, &mut frame).expect("a question");
        assert_eq!(frame[28..32], ADDRESS);
        assert_eq!(frame[38..42], [10, 0, 2, 1], "the router is asked for");
    }

    #[test]
    fn tries_again_less_and_less_often() {
        let (mut client, mut host, mut frame) = (Client::new(7, 0), host(), [0; 400]);
        let sent: Vec<u32> = (0..40_000)
            .filter(|ms| client.poll_transmit(&mut host, *ms, &mut frame).is_some())
            .collect();
        assert_eq!(sent, [0, 1000, 3000, 7000, 15_000, 31_000]);
    }

    #[test]
    fn half_the_lease_later_it_is_asked_for_again() {
        let (mut client, mut host) = bound();
        let mut frame = [0; 400];
        assert_eq!(client.poll_transmit(&mut host, 50_008, &mut frame), None);
        assert!(client.poll_transmit(&mut host, 50_009, &mut frame).is_some());
        assert_eq!(kind(&frame), REQUEST);
        // Without an answer it begins anew, by and by.
        let sent: Vec<u8> = (50_010..120_000)
            .filter_map(|ms| client.poll_transmit(&mut host, ms, &mut frame).map(|_| kind(&frame)))
            .collect();
        assert_eq!(sent.last(), Some(&DISCOVER));
    }

    #[test]
    fn another_devices_answers_and_refusals_are_heard_for_what_they_are() {
        let (mut client, mut host, mut frame) = (Client::new(7, 0), host(), [0; 400]);
        client.poll_transmit(&mut host, 0, &mut frame).expect("discover");
        client.receive(&mut host, 1, &answer(OFFER, 8, &GOOD));
        assert_eq!(client.step, Step::Discovering, "another's transaction");
        client.receive(&mut host, 1, &answer(ACK, 7, &GOOD));
        assert_eq!(client.step, Step::Discovering, "nothing was requested");
        client.receive(&mut host, 1, &answer(OFFER, 7, &GOOD));
        client.receive(&mut host, 1, &answer(NAK, 7, &[]));
        assert_eq!(client.step, Step::Discovering, "the server changed its mind");
    }

    #[test]
    fn options_that_are_cut_off_end_the_message() {
        let (mut client, mut host, mut frame) = (Client::new(7, 0), host(), [0; 400]);
        client.poll_transmit(&mut host, 0, &mut frame).expect("discover");
        for len in 0..=255 {
            let mut options = [9; 50];
            options[1] = len;
            client.receive(&mut host, 1, &answer(OFFER, 7, &options));
        }
        assert!(matches!(client.step, Step::Requesting { .. }), "what came before it counts");
    }
}
