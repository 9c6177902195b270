//! What a connection is asked for with: whom to trust, what to resume, how the MQTT session is to be.

/// Whom to take for the server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Trust<'a> {
    /// A server that proves to hold this Ed25519 key, whatever its certificate says.
    #[cfg(feature = "ed25519")]
    Ed25519(&'a [u8; 32]),
    /// A server that proves to hold this P-256 key (65 bytes, uncompressed, as SEC 1 writes it), whatever
    /// its certificate says.
    #[cfg(feature = "p256")]
    P256(&'a [u8; 65]),
    /// A server with a certificate for the connection's server name, issued by this P-256 authority,
    /// directly or by way of one intermediate.
    #[cfg(feature = "x509")]
    Authority {
        /// The authority's key, 65 bytes, uncompressed.
        key: &'a [u8; 65],
        /// The time, in seconds since 1970, at which certificates must be valid.
        unix_s: u64,
    },
}

/// Remains of an earlier connection to the same server.
#[derive(Clone, Copy, Debug)]
pub struct Resume<'a> {
    /// Ticket that [`Client::ticket`](crate::Client::ticket) returned then.
    pub ticket: &'a [u8],
    /// Milliseconds since then. Servers refuse early data if this is wrong by more than some seconds.
    pub age_ms: u32,
    /// Whether what is written before the handshake is over may be sent in 0-RTT packets, which an
    /// attacker can record and send again. Only where the server has a defence against that, as Fulmar
    /// has, or for what does no harm when done twice.
    pub early_data: bool,
}

/// The MQTT session to open.
#[derive(Clone, Copy, Debug)]
pub struct Session<'a> {
    /// The client's identifier; empty lets the server choose one.
    pub client_id: &'a str,
    /// The user's name, if the server asks for one.
    pub user: Option<&'a str>,
    /// The password, if the server asks for one.
    pub password: Option<&'a [u8]>,
    /// After how many seconds of silence the client shows that it is alive; 0: never.
    pub keep_alive_s: u16,
    /// Whether to forget what the server remembers of an earlier session.
    pub clean_start: bool,
    /// For how many seconds the server shall remember the session once the connection is gone.
    pub expiry_s: u32,
}

impl Default for Session<'_> {
    fn default() -> Self {
        Self {
            client_id: "",
            user: None,
            password: None,
            keep_alive_s: 0,
            clean_start: true,
            expiry_s: 0,
        }
    }
}

/// Parameters of [`Client::connect`](crate::Client::connect).
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The server's name, as its certificate has it, at most
    /// [`SERVER_NAME_BYTES`](crate::limits::SERVER_NAME_BYTES) long.
    pub server_name: &'a str,
    /// Whom to take for the server.
    pub trust: Trust<'a>,
    /// An earlier connection to resume.
    pub resume: Option<Resume<'a>>,
    /// The MQTT session to open.
    pub session: Session<'a>,
}

/// Quality of service: the guarantee that a message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QoS {
    /// MQTT's QoS 0: at most once. QUIC repeats what is lost while the connection lasts.
    AtMostOnce,
    /// MQTT's QoS 1: the server acknowledges, and the caller learns of it.
    AtLeastOnce,
}

/// An X25519 key pair for one connection. Making it takes a microcontroller long (half of the time to the
/// first datagram), and can be done while there is nothing else to do.
pub struct KeyPair {
    pub(crate) secret: [u8; 32],
    pub(crate) public: [u8; 32],
}

impl KeyPair {
    /// Makes a pair from 32 bytes of entropy that are used for nothing else. A pair used twice links the
    /// connections and weakens both.
    pub fn new(entropy: &[u8; 32]) -> Self {
        let public = x25519_dalek::x25519(*entropy, x25519_dalek::X25519_BASEPOINT_BYTES);
        Self { secret: *entropy, public }
    }
}
