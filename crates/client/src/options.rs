//! A client's options. The name or type of every limit has its unit.

use std::path::PathBuf;
use std::time::Duration;

use fulmar_congestion::Congestion;
use fulmar_mqtt::topic::check_name;
use fulmar_mqtt::{PropertyBuf, Version};

use crate::error::Error;
use crate::message::Message;
use crate::tickets::Tickets;
use crate::url::{BrokerUrl, Transport};

/// The most streams besides the control stream.
const MAX_DATA_STREAMS: u16 = 64;

/// Shorter intervals would only be load.
const LEAST_QUIC_KEEP_ALIVE: Duration = Duration::from_millis(100);

/// Servers to trust, if the transport is encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// On this machine its development authority if there is one, and the system's authorities.
    #[default]
    Auto,
    /// The authorities in this PEM file and no others.
    CaFile(PathBuf),
    /// Every server. For experiments: an attacker on the path can read and change everything.
    Insecure,
}

/// The waits between attempts to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// First wait; each further one is twice as long.
    pub first: Duration,
    /// Longest wait. Half of each wait is random, so that many clients do not reconnect at once.
    pub longest: Duration,
}

impl Backoff {
    /// The wait before the attempt after `failures` failures in a row.
    pub(crate) fn wait(&self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.longest).mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Behaviour if UDP is blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// Nothing: QUIC or not at all.
    #[default]
    None,
    /// Tries TLS over TCP too if QUIC has not answered after 300 ms, or at once if QUIC is refused; the first to be
    /// answered wins. If TCP has won, it is tried first for ten minutes.
    Race {
        /// TCP port, 8883 by convention.
        port: u16,
    },
}

/// Distribution of messages among the streams of a QUIC connection. A lost packet of one stream does not delay
/// other streams. Other transports have one stream for everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// One stream for everything, which every server with MQTT over QUIC supports.
    #[default]
    Single,
    /// Publications: a stream for each topic, subscriptions on the control stream.
    PerTopic,
    /// A stream for each subscription, publications on the control stream.
    PerSubscription,
    /// A stream for each topic and for each subscription.
    PerTopicAndSubscription,
}

/// The message that the server publishes if this client is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// The message.
    pub message: Message,
    /// Seconds to wait for the client to return; MQTT 5.0 only.
    pub delay_s: u32,
}

/// A version of TLS over TCP; QUIC always has 1.3 (RFC 9001).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246).
    V1_2,
    /// TLS 1.3 (RFC 8446).
    V1_3,
}

/// Everything about one client.
#[derive(Clone)]
pub struct Options {
    /// Where the broker is.
    pub url: BrokerUrl,
    /// Further addresses of it, such as the other nodes of a cluster, with the same transport. They are tried in turn.
    pub others: Vec<BrokerUrl>,
    /// Protocol version.
    pub version: Version,
    /// Client identifier; empty lets the server choose.
    pub client_id: String,
    /// User name.
    pub username: Option<String>,
    /// Password or token.
    pub password: Option<Vec<u8>>,
    /// Whether to sign in with SCRAM-SHA-256 (MQTT 5.0 only): the password is not sent, and the server has to show that it
    /// has the password's verifier. The first connection takes the time of as many hashes as the server asks for.
    pub scram: bool,
    /// Whether the first connection begins a new session; later ones resume it.
    pub clean_start: bool,
    /// Seconds the server keeps the session without a connection; with 3.1.1 all but 0 mean for ever.
    pub session_expiry_s: u32,
    /// Keep alive in seconds, 0 for none.
    pub keep_alive_s: u16,
    /// QUIC's own keep alive: silence after which the server is asked for a sign of life, which also
    /// keeps NAT bindings open. A server that is gone is noticed at the next one where its machine
    /// still answers, and after six more (8 s to 75 s) where nothing does: it
    /// survives a bad minute.
    pub quic_keep_alive: Duration,
    /// Congestion control of what this client sends over QUIC.
    pub congestion: Congestion,
    /// Whether small datagrams over QUIC are sent again within milliseconds where more than 5 % of the
    /// packets are lost and little is sent: at most four times, twice the connection's own bytes and
    /// 64 kbit/s.
    pub copies: bool,
    /// QoS 1 and 2 messages the server may send without acknowledgement, at least 1.
    pub receive_maximum: u16,
    /// Whether messages at QoS 1 are acknowledged by [`Client::acknowledge`](crate::Client::acknowledge)
    /// only, when the application has them for good; no more than `receive_maximum` come before that.
    /// Messages at QoS 2 are acknowledged as they come in any case.
    pub acknowledge_by_hand: bool,
    /// Largest packet to take, in bytes.
    pub max_packet_bytes: u32,
    /// Messages that may wait for a connection or for acknowledgements before `publish` waits too.
    pub max_queued_messages: usize,
    /// Bytes of messages that may be queued or in flight before `publish` waits too; the last one may exceed it.
    pub max_queued_bytes: usize,
    /// Distribution of messages among QUIC streams.
    pub streams: Streams,
    /// Streams beside the control stream, 1 to 64. Topics and filters beyond that share.
    pub max_data_streams: u16,
    /// Whether data streams are persistent flows of the MQTT-next draft: subscriptions and QoS state
    /// survive the loss of stream and connection. For servers that know them, as Fulmar does; where
    /// one does not, everything goes over the control stream. Without it data streams are plain, as
    /// EMQX has them, and QoS 2 stays on the control stream, where it arrives once.
    pub persistent_flows: bool,
    /// Whether publications may follow CONNECT before the server has answered it (section 3.1.4), which
    /// saves a round trip: up to ten small ones with QoS 1 and without RETAIN, which any server takes.
    /// They are sent again when the connection comes to nothing. Early data carries more with or
    /// without this.
    pub publish_before_connack: bool,
    /// Whether to say to a 3.1.1 server that this client is a bridge: mosquitto, EMQX and Fulmar then
    /// send it nothing it published itself. MQTT 5.0 has an option of each subscription for that.
    pub bridge: bool,
    /// Will.
    pub will: Option<Will>,
    /// Further CONNECT properties (user properties, authentication); MQTT 5.0 only.
    pub connect_properties: PropertyBuf,
    /// Servers to trust.
    pub trust: Trust,
    /// The only version of TLS over TCP to speak; `None` takes the newest both sides know.
    pub tls_version: Option<TlsVersion>,
    /// Client certificate chain and private key, PEM files.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// File to which the secrets of connections over TLS and QUIC are appended, so that Wireshark decrypts them.
    pub key_log: Option<PathBuf>,
    /// Behaviour if UDP is blocked.
    pub fallback: Fallback,
    /// Waits between attempts to reconnect; `None` gives up at the first failure.
    pub reconnect: Option<Backoff>,
    /// The longest time for the handshakes of TCP, TLS, WebSocket or QUIC, and then for CONNACK; QUIC's may take three
    /// times as long while packets arrive. With several addresses, each gets a quarter of it in the first round, half in the second, and then all of it.
    pub connect_timeout: Duration,
    /// The longest time for which `disconnect` waits for acknowledgements.
    pub drain_timeout: Duration,
    /// Tickets of servers: the client's own, or what [`Options::with_shared_tickets`] made.
    pub tickets: Tickets,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // No credentials.
        f.debug_struct("Options")
            .field("url", &self.url)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Options with defaults: MQTT 5.0, a new session that ends with the connection, keep alive 60
    /// s, reconnecting after 0.25 s to 30 s. `url` may be a list, see [`BrokerUrl::list`].
    ///
    /// # Errors
    /// The URL is not one of a broker.
    pub fn new(url: &str) -> Result<Options, Error> {
        let mut list = BrokerUrl::list(url)?;
        let first = list.remove(0);
        Ok(Options {
            url: first,
            others: list,
            version: Version::V5,
            client_id: String::new(),
            username: None,
            password: None,
            scram: false,
            clean_start: true,
            session_expiry_s: 0,
            keep_alive_s: 60,
            // NAT bindings last at least 30 s; one lost packet in between does no harm.
            quic_keep_alive: Duration::from_secs(12),
            congestion: Congestion::default(),
            copies: true,
            receive_maximum: 512,
            acknowledge_by_hand: false,
            max_packet_bytes: 16 << 20,
            max_queued_messages: 1024,
            max_queued_bytes: 64 << 20,
            streams: Streams::Single,
            max_data_streams: 16,
            persistent_flows: false,
            publish_before_connack: false,
            bridge: false,
            will: None,
            connect_properties: PropertyBuf::new(),
            trust: Trust::Auto,
            tls_version: None,
            certificate: None,
            key_log: None,
            fallback: Fallback::None,
            reconnect: Some(Backoff {
                first: Duration::from_millis(250),
                longest: Duration::from_secs(30),
            }),
            connect_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            tickets: Tickets::default(),
        })
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let fail = |text: &str| Err(Error::Options(text.to_owned()));
        if self.client_id.is_empty() && self.version == Version::V311 && !self.is_clean_v311() {
            return fail("a persistent session needs a client identifier");
        }
        if self.version == Version::V311 && self.password.is_some() && self.username.is_none() {
            return fail("MQTT 3.1.1 has no password without a user name");
        }
        let named = self.username.is_some() && self.password.is_some();
        if self.scram && (self.version == Version::V311 || !named) {
            return fail("SCRAM needs MQTT 5.0, a user name and a password");
        }
        let names = [Some(&self.client_id), self.username.as_ref()];
        let too_long = names.iter().flatten().any(|text| text.len() > usize::from(u16::MAX));
        let secret = self.password.as_ref().map_or(0, Vec::len);
        let will = self.will.as_ref().map_or(0, |will| will.message.payload.len());
        if too_long || secret.max(will) > usize::from(u16::MAX) {
            return fail("client identifier, user name, password and will end at 65,535 bytes");
        }
        if let Some(will) = &self.will {
            let topic = &will.message.topic;
            let wrong = |source| Error::Topic { topic: topic.clone(), source };
            check_name(topic).map_err(wrong)?;
        }
        if self.receive_maximum == 0 || self.max_queued_messages == 0 || self.max_queued_bytes == 0
        {
            return fail("receive maximum and queue are at least 1");
        }
        if self.quic_keep_alive < LEAST_QUIC_KEEP_ALIVE {
            return fail("QUIC's keep alive is at least 100 ms");
        }
        if !(1..=MAX_DATA_STREAMS).contains(&self.max_data_streams) {
            return fail("data streams are 1 to 64");
        }
        if self.others.iter().any(|other| other.transport != self.url.transport) {
            return fail("all addresses of a list have the same transport");
        }
        if self.fallback != Fallback::None && self.url.transport != Transport::Quic {
            return fail("falling back to TLS is for quic:// URLs");
        }
        Ok(())
    }

    /// 3.1.1 has one flag for both.
    pub(crate) fn is_clean_v311(&self) -> bool {
        self.session_expiry_s == 0
    }
}
