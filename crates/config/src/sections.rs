//! The sections of the configuration file: plain data with defaults, units in the names.
//!
//! `fulmar.example.toml` explains the keys. An empty path or string means "not set", so that every key can be written
//! with its default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use fulmar_broker::{ClientStatistics, DropPolicy, Limits, RatePolicy, SessionOwner};
use fulmar_congestion::Congestion;
use fulmar_http::MIN_HEADER_BYTES;
use fulmar_mqtt::codec::MAX_PACKET_BYTES;
use fulmar_scram::{MAX_ITERATIONS, MIN_ITERATIONS};
use fulmar_transport::tls::ClientAuth;
use fulmar_transport::{QuicKeys, QuicSettings, RetryPolicy, TransportLimits};
use serde::{Deserialize, Serialize};

use super::acl_rule::AclRule;
use super::disk::Disk;
use super::memory::Memory;
use super::section::sections;

/// Maximum number of workers of a broker.
const MAX_WORKERS: usize = 1024;

/// A hundred years.
pub(crate) const MAX_KEPT_DAYS: u32 = 36_525;

/// Bodies are in memory as a whole.
const MAX_BODY_BYTES: usize = 1024 * 1024 * 1024;

/// Requests without a token have a quarter of it, and a login has 16 KiB.
const MIN_BUFFERED_BODY_BYTES: usize = 128 * 1024;

/// Block numbers have 20 bits, and the smallest blocks 16 bytes.
const MAX_COAP_BODY_BYTES: usize = 16 << 20;

/// A path that is set.
pub fn set(path: &Path) -> Option<&Path> {
    (!path.as_os_str().is_empty()).then_some(path)
}

sections! {
    /// The program itself.
    pub struct Server {
        /// Worker threads; 0 for one per core.
        pub workers: usize = 0 => 0..=MAX_WORKERS,
        /// Microseconds that an often woken worker pauses before it waits.
        pub coalesce_us: u32 = 100 => 0..=10_000,
        /// Data folder; empty for the user's default one.
        pub data_dir: PathBuf = PathBuf::new(),
        /// Time for clients to receive their last messages when the broker stops.
        pub drain_timeout_s: u32 = 5,
    }

    /// Where to listen. An empty list switches a listener off.
    pub struct Listeners {
        pub mqtt: Vec<SocketAddr> = local(1883),
        pub mqtts: Vec<SocketAddr> = local(8883),
        pub ws: Vec<SocketAddr> = local(8083),
        pub wss: Vec<SocketAddr> = Vec::new(),
        pub quic: Vec<SocketAddr> = local(14567),
        pub https: Vec<SocketAddr> = local(8443),
        pub webtransport: Vec<SocketAddr> =
            vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)],
        pub http: Vec<SocketAddr> = local(14568),
        pub coap: Vec<SocketAddr> = local(COAP),
        pub coaps: Vec<SocketAddr> = local(COAPS),
        pub mqtt_sn: Vec<SocketAddr> = Vec::new(),
    }
}

/// Default ports of CoAP.
const COAP: u16 = 5683;
const COAPS: u16 = 5684;

/// This machine's own addresses: `localhost` is the second first for some clients.
fn local(port: u16) -> Vec<SocketAddr> {
    let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    addresses.map(|address| SocketAddr::new(address, port)).to_vec()
}

impl Listeners {
    /// The listeners for MQTT clients, by name.
    pub fn mqtt_listeners(&self) -> [(&'static str, &[SocketAddr]); 7] {
        [
            ("mqtt", &self.mqtt),
            ("mqtts", &self.mqtts),
            ("ws", &self.ws),
            ("wss", &self.wss),
            ("quic", &self.quic),
            ("https", &self.https),
            ("webtransport", self.webtransport()),
        ]
    }

    /// Those that may name another node while this one stands by. A URL's scheme has the same name.
    #[cfg(feature = "cluster")]
    pub fn redirecting_mut(&mut self) -> [(&'static str, &mut Vec<SocketAddr>); 5] {
        [
            ("mqtt", &mut self.mqtt),
            ("mqtts", &mut self.mqtts),
            ("ws", &mut self.ws),
            ("wss", &mut self.wss),
            ("quic", &mut self.quic),
        ]
    }

    /// True if a listener has TLS.
    pub fn have_tls(&self) -> bool {
        let all = [&self.mqtts, &self.wss, &self.quic, &self.https, &self.coaps];
        all.iter().any(|addresses| !addresses.is_empty()) || !self.webtransport().is_empty()
    }

    /// The listeners for CoAP by name, each with its default address.
    pub fn coap_listeners(&self) -> [(&'static str, &[SocketAddr]); 2] {
        [("coap", &self.coap), ("coaps", &self.coaps)]
    }

    /// True for a default address of CoAP, which may be another program's.
    pub fn is_coap_default(address: SocketAddr) -> bool {
        local(COAP).contains(&address) || local(COAPS).contains(&address)
    }

    /// Leaves out `[::1]` on a machine without IPv6.
    pub fn adapt_to_machine(&mut self) {
        let near = |address: &SocketAddr| address.ip() == IpAddr::V6(Ipv6Addr::LOCALHOST);
        let nowhere = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);
        if fulmar_transport::listening_socket(nowhere, true).is_ok() {
            return;
        }
        let Listeners {
            mqtt,
            mqtts,
            ws,
            wss,
            quic,
            https,
            webtransport,
            http,
            coap,
            coaps,
            mqtt_sn,
        } = self;
        for addresses in
            [mqtt, mqtts, ws, wss, quic, https, webtransport, http, coap, coaps, mqtt_sn]
        {
            addresses.retain(|address| !near(address));
        }
    }

    /// Without `https` there are no pages that could use it, and no endpoint that announces it to them.
    pub fn webtransport(&self) -> &[SocketAddr] {
        if self.https.is_empty() { &[] } else { &self.webtransport }
    }
}

/// Certificates.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// Certificate chain in PEM; empty for the development CA's.
    pub cert: PathBuf,
    /// Certificate's private key, mode 0600.
    pub key: PathBuf,
    /// Further names and addresses in the development certificate.
    pub names: Vec<String>,
    /// Whether clients need certificates.
    pub client_auth: ClientAuth,
    /// CA of client certificates.
    pub client_ca: PathBuf,
    /// Files of certificates that it has revoked; none for no check.
    pub crl_files: Vec<PathBuf>,
    /// Whether a list past its next update counts.
    pub crl_expired: CrlExpired,
    /// File for the secrets of connections (`--keylog`).
    #[serde(skip)]
    pub key_log: Option<PathBuf>,
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line, for collectors.
    Json,
}

/// Consequence of an expired revocation list for clients with certificates of its CA.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CrlExpired {
    #[default]
    Refuse,
    Accept,
}

sections! {
    /// A certificate from a public CA, by ACME.
    pub struct Acme {
        /// Host names the certificate is for; none for no ACME.
        pub domains: Vec<String> = Vec::new(),
        /// URL of the CA's directory.
        pub directory: String = "https://acme-v02.api.letsencrypt.org/directory".into(),
        /// URLs at which the CA may contact the operator.
        pub contact: Vec<String> = Vec::new(),
        /// Whether the operator agrees to the CA's terms.
        pub agree_to_terms: bool = false,
        /// CA of the directory server's certificate; empty for the system's CAs.
        pub ca_file: PathBuf = PathBuf::new(),
        /// Method by which the CA validates names.
        pub challenge: Challenge = Challenge::default(),
    }
}

impl Acme {
    /// Whether a certificate is to be ordered.
    pub fn is_on(&self) -> bool {
        !self.domains.is_empty()
    }
}

/// Method by which a CA validates names.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub enum Challenge {
    /// At the `https` listener (RFC 8737).
    #[default]
    #[serde(rename = "tls-alpn-01")]
    TlsAlpn01,
    /// Recognised, so that the error can state that it is not supported.
    #[serde(rename = "http-01")]
    Http01,
}

/// Settings for measurements only.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lab {
    /// Whether https serves objects of any size to everybody.
    pub objects: bool,
}

sections! {
    /// QUIC; see [`QuicSettings`].
    pub struct Quic (quic = QuicSettings::new(QuicKeys([0; 64]))) {
        pub idle_timeout_s: u32 = seconds(quic.idle_timeout) => 1..=24 * 3600,
        pub max_streams: u32 = quic.max_streams => 1..=65_535,
        pub early_data: bool = quic.early_data,
        pub retry: RetryPolicy = RetryPolicy::Auto,
        pub congestion: Congestion = Congestion::default(),
        /// Earlier form of `congestion = "bbr"`, before 0.2; read only.
        #[serde(skip_serializing)]
        pub bbr: bool = false,
        pub copies: bool = quic.copies,
        pub mtu_discovery: bool = quic.mtu_discovery,
        // Without a window no client could send anything.
        pub stream_window_bytes: u32 = quic.stream_window_bytes => 1024..=u32::MAX,
        pub connection_window_bytes: u32 = quic.connection_window_bytes => 1024..=u32::MAX,
        pub min_send_window_bytes: u32 =
            u32::try_from(quic.min_send_window_bytes).unwrap_or(u32::MAX),
        pub qlog_dir: PathBuf = PathBuf::new(),
    }
}

fn seconds(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

sections! {
    /// The HTTP endpoint; see [`fulmar_http::Limits`].
    pub struct Http (limits = fulmar_http::Limits::default()) {
        /// Origins of further pages that may open MQTT connections.
        pub allowed_origins: Vec<String> = Vec::new(),
        /// Further names of this machine at the `http` listener.
        pub allowed_hosts: Vec<String> = Vec::new(),
        pub max_body_bytes: usize = limits.max_body_bytes => 1024..=MAX_BODY_BYTES,
        /// Bytes of bodies in memory, over all connections.
        pub max_buffered_body_bytes: usize = 64 * 1024 * 1024 => MIN_BUFFERED_BODY_BYTES..=usize::MAX,
        pub max_header_bytes: u32 = limits.max_header_bytes => MIN_HEADER_BYTES..=1024 * 1024,
        pub max_concurrent_requests: u32 = limits.max_concurrent_requests => 1..=1024,
        pub request_timeout_s: u32 = seconds(limits.request_timeout) => 1..=3600,
        pub idle_timeout_s: u32 = seconds(limits.idle_timeout) => 1..=24 * 3600,
    }

    /// CoAP; see [`fulmar_coap::Limits`].
    pub struct Coap (limits = fulmar_coap::Limits::default()) {
        /// `user:key` lines; empty for none.
        pub psk_file: PathBuf = PathBuf::new(),
        pub max_sessions: usize = 1000 => 1..=100_000,
        pub max_peers: usize = limits.max_peers => 1..=1_000_000,
        pub max_body_bytes: usize = limits.max_body_bytes => 1024..=MAX_COAP_BODY_BYTES,
        pub max_buffered_bytes: usize = limits.max_buffered_bytes => 65_536..=usize::MAX,
        pub max_observations_per_peer: usize = limits.max_observations_per_peer => 1..=65_536,
    }

    /// Bounds; see [`Limits`] and [`TransportLimits`].
    pub struct LimitsConfig (
        limits = Limits::default(), transport = TransportLimits::default()
    ) {
        pub memory: Memory = Memory::default(),
        pub disk: Disk = Disk::default(),
        pub max_packet_bytes: usize = limits.max_packet_bytes => 64..=MAX_PACKET_BYTES,
        pub max_connections: usize = limits.max_connections => 1..=usize::MAX,
        pub max_client_id_bytes: usize = limits.max_client_id_bytes => 23..=65_535,
        pub receive_maximum: u16 = limits.receive_maximum => 1..=u16::MAX,
        pub max_in_flight: u16 = limits.max_in_flight => 1..=u16::MAX,
        pub topic_alias_maximum: u16 = limits.topic_alias_maximum,
        /// 0 leaves the client's choice.
        pub max_keep_alive_s: u16 = limits.max_keep_alive_s.unwrap_or(0),
        pub max_session_expiry_s: u32 = limits.max_session_expiry_s,
        pub max_sessions: usize = limits.max_sessions => 1..=usize::MAX,
        pub max_subscriptions_per_session: usize = limits.max_subscriptions_per_session,
        pub max_wildcard_subscriptions_per_user: usize =
            limits.max_wildcard_subscriptions_per_user,
        pub max_flows_per_session: usize = limits.max_flows_per_session,
        pub max_retained_messages: usize = limits.max_retained_messages,
        pub max_retained_bytes: usize = limits.max_retained_bytes,
        pub max_queued_messages: usize = limits.max_queued_messages,
        pub max_queued_bytes: usize = limits.max_queued_bytes,
        pub drop_policy: DropPolicy = limits.drop_policy,
        pub max_outbox_bytes: usize = limits.max_outbox_bytes => 4096..=usize::MAX,
        pub max_connection_outbox_bytes: usize = limits.max_connection_outbox_bytes => 65_536..=usize::MAX,
        // A packet that is received in parts would close its connection.
        pub max_partial_bytes_per_worker: usize = transport.max_partial_bytes_per_worker => 65_536..=usize::MAX,
        pub max_storage_backlog: usize = limits.max_storage_backlog,
        pub max_publishes_per_s: u32 = limits.max_publishes_per_s,
        pub max_publish_bytes_per_s: u32 = limits.max_publish_bytes_per_s,
        pub rate_policy: RatePolicy = limits.rate_policy,
        pub max_connects_per_s_per_address: u32 = limits.max_connects_per_s_per_address,
        pub connect_timeout_s: u32 = seconds(limits.connect_timeout) => 1..=3600,
        pub handshake_timeout_s: u32 = seconds(transport.handshake_timeout) => 1..=3600,
    }
}

/// Clients that may connect without credentials.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Anonymous {
    /// On loopback listeners only.
    #[default]
    Loopback,
    /// mosquitto's `true`.
    #[serde(alias = "true")]
    Always,
    /// mosquitto's `false`.
    #[serde(alias = "false")]
    Never,
}

sections! {
    /// Authentication.
    pub struct Auth {
        pub allow_anonymous: Anonymous = Anonymous::default(),
        /// `user:hash` lines; empty for none.
        pub password_file: PathBuf = PathBuf::new(),
        /// HS256, RS256, ES256, EdDSA or JWKS; empty for no tokens.
        pub jwt_algorithm: String = String::new(),
        /// The secret, the public key or the key set.
        pub jwt_key_file: PathBuf = PathBuf::new(),
        /// Audiences of tokens that may call this broker; without any, only tokens without `aud` are accepted.
        pub jwt_audience: Vec<String> = Vec::new(),
        /// The issuer that tokens must have; empty for any.
        pub jwt_issuer: String = String::new(),
        /// Whether sessions belong to users.
        pub session_owner: SessionOwner = SessionOwner::default(),
        /// Whether SCRAM-SHA-256 is offered, and passwords that are set from now on get a verifier for it.
        pub scram: bool = false,
        /// Iterations of those verifiers.
        // OWASP's advice for PBKDF2 with HMAC-SHA-256, of 2023.
        pub scram_iterations: u32 = 600_000 => MIN_ITERATIONS..=MAX_ITERATIONS,
        /// A web service that decides about logins.
        pub http: AuthHttp = AuthHttp::default(),
    }
}

impl Auth {
    /// Iterations of the verifiers of new passwords; `None` for no verifiers.
    pub fn verifier_iterations(&self) -> Option<u32> {
        self.scram.then_some(self.scram_iterations)
    }
}

sections! {
    /// A web service that decides about logins by name and password, and about certificates if it is to.
    pub struct AuthHttp {
        /// Where it is asked; empty for none.
        pub url: String = String::new(),
        /// Token that the service expects; empty for none.
        pub token_file: PathBuf = PathBuf::new(),
        /// CA of its certificate; empty for the system's CAs.
        pub ca_file: PathBuf = PathBuf::new(),
        /// Whether it also decides about clients with verified certificates.
        pub certificates: bool = false,
        /// Longest time until its complete answer.
        pub timeout_ms: u32 = 2000 => 10..=60_000,
        /// Requests at the same time.
        pub max_in_flight: u32 = 32 => 1..=1024,
        /// Time for which an allowed login is remembered; 0 for not at all.
        pub cache_s: u32 = 60 => 0..=24 * 3600,
        /// Logins remembered.
        pub cache_entries: usize = 10_000 => 0..=1_000_000,
    }

    /// Access rules.
    pub struct Acl {
        /// The decision if no rule matches.
        pub default_allow: bool = true,
        pub rules: Vec<AclRule> = Vec::new(),
    }

    /// Durable state; see [`fulmar_store::Options`].
    pub struct Storage (options = fulmar_store::Options::default()) {
        /// False: sessions and retained messages last as long as the process.
        pub enabled: bool = true,
        /// Shortest time between two commits.
        pub commit_interval_ms: u32 =
            u32::try_from(options.commit_interval.as_millis()).unwrap_or(0) => 0..=60_000,
        /// Operations after which a commit accepts no more.
        pub commit_max_ops: usize = options.commit_max_ops => 1..=usize::MAX,
        /// Largest size of the database; 0 for its part of [`LimitsConfig::disk`].
        pub max_bytes: u64 = options.max_bytes.unwrap_or(0),
        /// Longest time for a commit before the broker refuses what it would have to store.
        pub stall_timeout_s: u32 = seconds(Limits::default().storage_stall_timeout) => 1..=3600,
    }
}

/// Whether a part is enabled: as configured, or where it is useful.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged, expecting = "expected true, false or \"auto\"")]
pub enum Enabled {
    Set(bool),
    By(Auto),
}

impl Default for Enabled {
    fn default() -> Self {
        if cfg!(feature = "platform") { Enabled::By(Auto::Auto) } else { Enabled::Set(false) }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    Auto,
}

sections! {
    /// Meters, work lists, readings and homes behind the HTTPS listener; see `fulmar_platform::Settings`, whose defaults
    /// these are. A build without the platform refuses its keys.
    pub struct Platform {
        /// Whether it is enabled, if there is an `https` listener.
        pub enabled: Enabled = Enabled::default(),
        /// Lifetime of a login.
        pub token_lifetime_s: u32 = 30 * 24 * 3600 => 60..=366 * 24 * 3600,
        /// Requests an account may make in the long run.
        pub max_requests_per_s: u32 = 200 => 1..=u32::MAX,
        /// Bytes of photos an account may store per day.
        pub max_photo_bytes_per_day: u64 = 512_000_000 => 4_194_304..=1 << 50,
        /// Days for which measurements are kept.
        pub raw_days: u32 = 90 => 1..=MAX_KEPT_DAYS,
        /// Days for which hourly means are kept, no fewer.
        pub hour_days: u32 = 730,
        /// Days for which daily means are kept, no fewer.
        pub day_days: u32 = 3650,
        /// Time zone of days and months.
        pub time_zone: String = "UTC".to_owned(),
        /// Addresses to which webhooks may connect besides public ones.
        pub webhook_allow: Vec<String> = Vec::new(),
        /// Database: `postgres://…`; empty for a file in the data folder.
        pub database: Secret = Secret::default(),
        /// File with its password.
        pub database_password_file: PathBuf = PathBuf::new(),
        /// CAs to trust there, PEM; empty for the system's.
        pub database_ca_file: PathBuf = PathBuf::new(),
    }
}

/// A password, or an address that may contain one, which no log may contain.
#[derive(Clone, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl Secret {
    /// Whether this address of a database contains a password.
    pub fn has_password(&self) -> bool {
        let authority = self.0.split_once("://").map_or("", |(_, rest)| rest);
        let user = authority.split('/').next().and_then(|host| host.rsplit_once('@'));
        user.is_some_and(|(user, _)| user.contains(':')) || self.0.contains("password=")
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "set" })
    }
}

sections! {
    /// `$SYS` topics.
    pub struct Sys {
        /// Seconds between two publications; 0 for never.
        pub interval_s: u32 = 10,
        /// Clients that may read other clients' path statistics there.
        pub clients: ClientStatistics = ClientStatistics::default(),
    }

    /// The log on standard error.
    pub struct Log {
        /// A level or a filter; see [`crate::logging`].
        pub level: String = "info".to_owned(),
        pub format: LogFormat = LogFormat::Text,
    }
}
