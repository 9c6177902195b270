//! The sections of the configuration file: plain data with defaults, units in the names.
//!
//! `fulmar.example.toml` explains the keys. An empty path or string means "not set", so that every key can be written
//! with its default.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use fulmar_broker::{ClientStatistics, DropPolicy, Limits, RatePolicy, SessionOwner};
use fulmar_congestion::Congestion;
use fulmar_transport::tls::ClientAuth;
use fulmar_transport::{QuicKeys, QuicSettings, RetryPolicy, TransportLimits};
use serde::{Deserialize, Serialize};

use super::acl_rule::AclRule;
use super::disk::Disk;
use super::memory::Memory;
use crate::logging::Format;

/// A path that is set.
pub(crate) fn set(path: &Path) -> Option<&Path> {
    (!path.as_os_str().is_empty()).then_some(path)
}

/// The program itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    /// Worker threads; 0 for one per core.
    pub(crate) workers: usize,
    /// Microseconds that an often woken worker pauses before it waits.
    pub(crate) coalesce_us: u32,
    /// Data folder; empty for the user's default one.
    pub(crate) data_dir: PathBuf,
    /// Time for clients to receive their last messages when the broker stops.
    pub(crate) drain_timeout_s: u32,
}

impl Default for Server {
    fn default() -> Self {
        Server { workers: 0, coalesce_us: 100, data_dir: PathBuf::new(), drain_timeout_s: 5 }
    }
}

/// Where to listen. An empty list switches a listener off.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listeners {
    pub(crate) mqtt: Vec<SocketAddr>,
    pub(crate) mqtts: Vec<SocketAddr>,
    pub(crate) ws: Vec<SocketAddr>,
    pub(crate) wss: Vec<SocketAddr>,
    pub(crate) quic: Vec<SocketAddr>,
    pub(crate) https: Vec<SocketAddr>,
    pub(crate) webtransport: Vec<SocketAddr>,
    pub(crate) http: Vec<SocketAddr>,
    pub(crate) coap: Vec<SocketAddr>,
    pub(crate) coaps: Vec<SocketAddr>,
    pub(crate) mqtt_sn: Vec<SocketAddr>,
}

/// Default ports of CoAP.
const COAP: u16 = 5683;
const COAPS: u16 = 5684;

/// This machine's own addresses: `localhost` is the second first for some clients.
fn local(port: u16) -> Vec<SocketAddr> {
    let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    addresses.map(|address| SocketAddr::new(address, port)).to_vec()
}

impl Default for Listeners {
    fn default() -> Self {
        Listeners {
            mqtt: local(1883),
            mqtts: local(8883),
            ws: local(8083),
            wss: Vec::new(),
            quic: local(14567),
            https: local(8443),
            webtransport: vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)],
            http: local(14568),
            coap: local(COAP),
            coaps: local(COAPS),
            mqtt_sn: Vec::new(),
        }
    }
}

impl Listeners {
    /// The listeners for MQTT clients, by name.
    pub(crate) fn mqtt_listeners(&self) -> [(&'static str, &[SocketAddr]); 7] {
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
    pub(crate) fn redirecting_mut(&mut self) -> [(&'static str, &mut Vec<SocketAddr>); 5] {
        [
            ("mqtt", &mut self.mqtt),
            ("mqtts", &mut self.mqtts),
            ("ws", &mut self.ws),
            ("wss", &mut self.wss),
            ("quic", &mut self.quic),
        ]
    }

    /// The listeners for CoAP by name, each with its default address.
    pub(crate) fn coap_listeners(&self) -> [(&'static str, &[SocketAddr]); 2] {
        [("coap", &self.coap), ("coaps", &self.coaps)]
    }

    /// Whether this is a default address of CoAP, which may be another program's.
    pub(crate) fn is_coap_default(address: SocketAddr) -> bool {
        local(COAP).contains(&address) || local(COAPS).contains(&address)
    }

    /// Leaves out `[::1]` on a machine without IPv6.
    pub(crate) fn adapt_to_machine(&mut self) {
        let near = |address: &SocketAddr| address.ip() == IpAddr::V6(Ipv6Addr::LOCALHOST);
        let nowhere = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 0);
        if fulmar_transport::can_listen(nowhere, true).is_ok() {
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
    pub(crate) fn webtransport(&self) -> &[SocketAddr] {
        if self.https.is_empty() { &[] } else { &self.webtransport }
    }
}

/// Certificates.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    /// Certificate chain in PEM; empty for the development CA's.
    pub(crate) cert: PathBuf,
    /// Its private key, mode 0600.
    pub(crate) key: PathBuf,
    /// Further names and addresses in the development certificate.
    pub(crate) names: Vec<String>,
    /// Whether clients need certificates.
    pub(crate) client_auth: ClientAuth,
    /// CA of client certificates.
    pub(crate) client_ca: PathBuf,
    /// Files of certificates that it has revoked; none for no check.
    pub(crate) crl_files: Vec<PathBuf>,
    /// Whether a list past its next update counts.
    pub(crate) crl_expired: CrlExpired,
    /// File for the secrets of connections (`--keylog`).
    #[serde(skip)]
    pub(crate) key_log: Option<PathBuf>,
}

/// What an expired revocation list means for clients with certificates of its CA.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CrlExpired {
    #[default]
    Refuse,
    Accept,
}

/// A certificate from a public CA, by ACME.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Acme {
    /// Host names the certificate is for; none for no ACME.
    pub(crate) domains: Vec<String>,
    /// URL of the CA's directory.
    pub(crate) directory: String,
    /// URLs at which the CA may contact the operator.
    pub(crate) contact: Vec<String>,
    /// Whether the operator agrees to the CA's terms.
    pub(crate) agree_to_terms: bool,
    /// CA of the directory server's certificate; empty for the system's CAs.
    pub(crate) ca_file: PathBuf,
    /// How the CA validates names.
    pub(crate) challenge: Challenge,
}

impl Default for Acme {
    fn default() -> Self {
        Acme {
            domains: Vec::new(),
            directory: "https://acme-v02.api.letsencrypt.org/directory".into(),
            contact: Vec::new(),
            agree_to_terms: false,
            ca_file: PathBuf::new(),
            challenge: Challenge::default(),
        }
    }
}

impl Acme {
    /// Whether a certificate is to be ordered.
    pub(crate) fn is_on(&self) -> bool {
        !self.domains.is_empty()
    }
}

/// How a CA validates names.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) enum Challenge {
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
pub(crate) struct Lab {
    /// Whether https serves objects of any size to everybody.
    pub(crate) objects: bool,
}

/// QUIC; see [`QuicSettings`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Quic {
    pub(crate) idle_timeout_s: u32,
    pub(crate) max_streams: u32,
    pub(crate) early_data: bool,
    pub(crate) retry: RetryPolicy,
    pub(crate) congestion: Congestion,
    /// How `congestion = "bbr"` was written before 0.2; read only.
    #[serde(skip_serializing)]
    pub(crate) bbr: bool,
    pub(crate) copies: bool,
    pub(crate) mtu_discovery: bool,
    pub(crate) stream_window_bytes: u32,
    pub(crate) connection_window_bytes: u32,
    pub(crate) min_send_window_bytes: u32,
    pub(crate) qlog_dir: PathBuf,
}

impl Default for Quic {
    fn default() -> Self {
        let quic = QuicSettings::new(QuicKeys([0; 64]));
        Quic {
            idle_timeout_s: seconds(quic.idle_timeout),
            max_streams: quic.max_streams,
            early_data: quic.early_data,
            retry: RetryPolicy::Auto,
            congestion: Congestion::default(),
            bbr: false,
            copies: quic.copies,
            mtu_discovery: quic.mtu_discovery,
            stream_window_bytes: quic.stream_window_bytes,
            connection_window_bytes: quic.connection_window_bytes,
            min_send_window_bytes: u32::try_from(quic.min_send_window_bytes).unwrap_or(u32::MAX),
            qlog_dir: PathBuf::new(),
        }
    }
}

fn seconds(duration: std::time::Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

/// The HTTP endpoint; see [`fulmar_http::Limits`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Http {
    /// Origins of further pages that may open MQTT connections.
    pub(crate) allowed_origins: Vec<String>,
    /// Further names of this machine at the `http` listener.
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) max_body_bytes: usize,
    /// Bytes of bodies in memory, over all connections.
    pub(crate) max_buffered_body_bytes: usize,
    pub(crate) max_header_bytes: u32,
    pub(crate) max_concurrent_requests: u32,
    pub(crate) request_timeout_s: u32,
    pub(crate) idle_timeout_s: u32,
}

impl Default for Http {
    fn default() -> Self {
        let limits = fulmar_http::Limits::default();
        Http {
            allowed_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_body_bytes: limits.max_body_bytes,
            max_buffered_body_bytes: 64 * 1024 * 1024,
            max_header_bytes: limits.max_header_bytes,
            max_concurrent_requests: limits.max_concurrent_requests,
            request_timeout_s: seconds(limits.request_timeout),
            idle_timeout_s: seconds(limits.idle_timeout),
        }
    }
}

/// CoAP; see [`fulmar_coap::Limits`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Coap {
    /// `user:key` lines; empty for none.
    pub(crate) psk_file: PathBuf,
    pub(crate) max_sessions: usize,
    pub(crate) max_peers: usize,
    pub(crate) max_body_bytes: usize,
    pub(crate) max_buffered_bytes: usize,
    pub(crate) max_observations_per_peer: usize,
}

impl Default for Coap {
    fn default() -> Self {
        let limits = fulmar_coap::Limits::default();
        Coap {
            psk_file: PathBuf::new(),
            max_sessions: 1000,
            max_peers: limits.max_peers,
            max_body_bytes: limits.max_body_bytes,
            max_buffered_bytes: limits.max_buffered_bytes,
            max_observations_per_peer: limits.max_observations_per_peer,
        }
    }
}

/// Bounds; see [`Limits`] and [`TransportLimits`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsConfig {
    pub(crate) memory: Memory,
    pub(crate) disk: Disk,
    pub(crate) max_packet_bytes: usize,
    pub(crate) max_connections: usize,
    pub(crate) max_client_id_bytes: usize,
    pub(crate) receive_maximum: u16,
    pub(crate) max_in_flight: u16,
    pub(crate) topic_alias_maximum: u16,
    /// 0 leaves the client's choice.
    pub(crate) max_keep_alive_s: u16,
    pub(crate) max_session_expiry_s: u32,
    pub(crate) max_sessions: usize,
    pub(crate) max_subscriptions_per_session: usize,
    pub(crate) max_wildcard_subscriptions_per_user: usize,
    pub(crate) max_flows_per_session: usize,
    pub(crate) max_retained_messages: usize,
    pub(crate) max_retained_bytes: usize,
    pub(crate) max_queued_messages: usize,
    pub(crate) max_queued_bytes: usize,
    pub(crate) drop_policy: DropPolicy,
    pub(crate) max_outbox_bytes: usize,
    pub(crate) max_connection_outbox_bytes: usize,
    pub(crate) max_partial_bytes_per_worker: usize,
    pub(crate) max_storage_backlog: usize,
    pub(crate) max_publishes_per_s: u32,
    pub(crate) max_publish_bytes_per_s: u32,
    pub(crate) rate_policy: RatePolicy,
    pub(crate) max_connects_per_s_per_address: u32,
    pub(crate) connect_timeout_s: u32,
    pub(crate) handshake_timeout_s: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let (limits, transport) = (Limits::default(), TransportLimits::default());
        LimitsConfig {
            memory: Memory::default(),
            disk: Disk::default(),
            max_packet_bytes: limits.max_packet_bytes,
            max_connections: limits.max_connections,
            max_client_id_bytes: limits.max_client_id_bytes,
            receive_maximum: limits.receive_maximum,
            max_in_flight: limits.max_in_flight,
            topic_alias_maximum: limits.topic_alias_maximum,
            max_keep_alive_s: limits.max_keep_alive_s.unwrap_or(0),
            max_session_expiry_s: limits.max_session_expiry_s,
            max_sessions: limits.max_sessions,
            max_subscriptions_per_session: limits.max_subscriptions_per_session,
            max_wildcard_subscriptions_per_user: limits.max_wildcard_subscriptions_per_user,
            max_flows_per_session: limits.max_flows_per_session,
            max_retained_messages: limits.max_retained_messages,
            max_retained_bytes: limits.max_retained_bytes,
            max_queued_messages: limits.max_queued_messages,
            max_queued_bytes: limits.max_queued_bytes,
            drop_policy: limits.drop_policy,
            max_outbox_bytes: limits.max_outbox_bytes,
            max_connection_outbox_bytes: limits.max_connection_outbox_bytes,
            max_partial_bytes_per_worker: transport.max_partial_bytes_per_worker,
            max_storage_backlog: limits.max_storage_backlog,
            max_publishes_per_s: limits.max_publishes_per_s,
            max_publish_bytes_per_s: limits.max_publish_bytes_per_s,
            rate_policy: limits.rate_policy,
            max_connects_per_s_per_address: limits.max_connects_per_s_per_address,
            connect_timeout_s: seconds(limits.connect_timeout),
            handshake_timeout_s: seconds(transport.handshake_timeout),
        }
    }
}

/// Which clients may connect without credentials.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Anonymous {
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

/// Authentication.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    pub(crate) allow_anonymous: Anonymous,
    /// `user:hash` lines; empty for none.
    pub(crate) password_file: PathBuf,
    /// HS256, RS256, ES256, EdDSA or JWKS; empty for no tokens.
    pub(crate) jwt_algorithm: String,
    /// The secret, the public key or the key set.
    pub(crate) jwt_key_file: PathBuf,
    /// What tokens may call this broker; without any, only tokens without `aud` are accepted.
    pub(crate) jwt_audience: Vec<String>,
    /// The issuer that tokens must have; empty for any.
    pub(crate) jwt_issuer: String,
    /// Whether sessions belong to users.
    pub(crate) session_owner: SessionOwner,
    /// Whether SCRAM-SHA-256 is offered, and passwords that are set from now on get a verifier for it.
    pub(crate) scram: bool,
    /// Iterations of those verifiers.
    pub(crate) scram_iterations: u32,
    /// A web service that decides about logins.
    pub(crate) http: AuthHttp,
}

impl Default for Auth {
    fn default() -> Self {
        Auth {
            allow_anonymous: Anonymous::default(),
            password_file: PathBuf::new(),
            jwt_algorithm: String::new(),
            jwt_key_file: PathBuf::new(),
            jwt_audience: Vec::new(),
            jwt_issuer: String::new(),
            session_owner: SessionOwner::default(),
            scram: false,
            // OWASP's advice for PBKDF2 with HMAC-SHA-256, of 2023.
            scram_iterations: 600_000,
            http: AuthHttp::default(),
        }
    }
}

impl Auth {
    /// Iterations of the verifiers of new passwords; `None` for no verifiers.
    pub(crate) fn verifier_iterations(&self) -> Option<u32> {
        self.scram.then_some(self.scram_iterations)
    }
}

/// A web service that decides about logins by name and password, and about certificates if it is to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AuthHttp {
    /// Where it is asked; empty for none.
    pub(crate) url: String,
    /// Token that the service expects; empty for none.
    pub(crate) token_file: PathBuf,
    /// CA of its certificate; empty for the system's CAs.
    pub(crate) ca_file: PathBuf,
    /// Whether it also decides about clients with verified certificates.
    pub(crate) certificates: bool,
    /// Longest time until its complete answer.
    pub(crate) timeout_ms: u32,
    /// Requests at the same time.
    pub(crate) max_in_flight: u32,
    /// How long an allowed login is remembered; 0 for not at all.
    pub(crate) cache_s: u32,
    /// Logins remembered.
    pub(crate) cache_entries: usize,
}

impl Default for AuthHttp {
    fn default() -> Self {
        AuthHttp {
            url: String::new(),
            token_file: PathBuf::new(),
            ca_file: PathBuf::new(),
            certificates: false,
            timeout_ms: 2000,
            max_in_flight: 32,
            cache_s: 60,
            cache_entries: 10_000,
        }
    }
}

/// Access rules.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Acl {
    /// The decision if no rule matches.
    pub(crate) default_allow: bool,
    pub(crate) rules: Vec<AclRule>,
}

impl Default for Acl {
    fn default() -> Self {
        Acl { default_allow: true, rules: Vec::new() }
    }
}

/// Durable state; see [`fulmar_store::Options`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Storage {
    /// False: sessions and retained messages last as long as the process.
    pub(crate) enabled: bool,
    /// Shortest time between two commits.
    pub(crate) commit_interval_ms: u32,
    /// Operations after which a commit accepts no more.
    pub(crate) commit_max_ops: usize,
    /// Largest size of the database; 0 for its part of [`LimitsConfig::disk`].
    pub(crate) max_bytes: u64,
    /// How long a commit may take before the broker refuses what it would have to store.
    pub(crate) stall_timeout_s: u32,
}

impl Default for Storage {
    fn default() -> Self {
        let options = fulmar_store::Options::default();
        Storage {
            enabled: true,
            commit_interval_ms: u32::try_from(options.commit_interval.as_millis()).unwrap_or(0),
            commit_max_ops: options.commit_max_ops,
            max_bytes: options.max_bytes.unwrap_or(0),
            stall_timeout_s: seconds(Limits::default().storage_stall_timeout),
        }
    }
}

/// Whether a part is enabled: as configured, or where it is useful.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(untagged, expecting = "expected true, false or \"auto\"")]
pub(crate) enum Enabled {
    Set(bool),
    By(Auto),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Auto {
    Auto,
}

/// Meters, work lists, readings and homes behind the HTTPS listener; see `fulmar_platform::Settings`.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Platform {
    /// Whether it is enabled, if there is an `https` listener.
    pub(crate) enabled: Enabled,
    /// How long a login lasts.
    pub(crate) token_lifetime_s: u32,
    /// Requests an account may make in the long run.
    pub(crate) max_requests_per_s: u32,
    /// Bytes of photos an account may store per day.
    pub(crate) max_photo_bytes_per_day: u64,
    /// Days for which measurements are kept.
    pub(crate) raw_days: u32,
    /// Days for which hourly means are kept.
    pub(crate) hour_days: u32,
    /// Days for which daily means are kept.
    pub(crate) day_days: u32,
    /// Time zone of days and months.
    pub(crate) time_zone: String,
    /// Addresses to which webhooks may connect besides public ones.
    pub(crate) webhook_allow: Vec<String>,
    /// Database: `postgres://…`; empty for a file in the data folder.
    pub(crate) database: DatabaseUrl,
    /// File with its password.
    pub(crate) database_password_file: PathBuf,
    /// CAs to trust there, PEM; empty for the system's.
    pub(crate) database_ca_file: PathBuf,
}

/// A database's address, which may contain a password.
#[derive(Clone, Default, Deserialize, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct DatabaseUrl(pub(crate) String);

impl DatabaseUrl {
    /// Whether there is one.
    pub(super) fn has_password(&self) -> bool {
        let authority = self.0.split_once("://").map_or("", |(_, rest)| rest);
        let user = authority.split('/').next().and_then(|host| host.rsplit_once('@'));
        user.is_some_and(|(user, _)| user.contains(':')) || self.0.contains("password=")
    }
}

impl std::fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "set" })
    }
}

#[cfg(feature = "platform")]
impl Default for Platform {
    fn default() -> Self {
        let settings = fulmar_platform::Settings::default();
        Platform {
            enabled: Enabled::By(Auto::Auto),
            token_lifetime_s: settings.token_lifetime_s,
            max_requests_per_s: settings.max_requests_per_s,
            max_photo_bytes_per_day: settings.photo_bytes_per_day,
            raw_days: settings.monitoring.raw_days,
            hour_days: settings.monitoring.hour_days,
            day_days: settings.monitoring.day_days,
            time_zone: "UTC".to_owned(),
            webhook_allow: Vec::new(),
            database: DatabaseUrl::default(),
            database_password_file: PathBuf::new(),
            database_ca_file: PathBuf::new(),
        }
    }
}

/// Without the platform these keys have no effect, and must not be set; they are within their ranges.
#[cfg(not(feature = "platform"))]
impl Default for Platform {
    fn default() -> Self {
        Platform {
            enabled: Enabled::Set(false),
            token_lifetime_s: 3600,
            max_requests_per_s: 1,
            max_photo_bytes_per_day: 4_194_304,
            raw_days: 1,
            hour_days: 1,
            day_days: 1,
            time_zone: "UTC".to_owned(),
            webhook_allow: Vec::new(),
            database: DatabaseUrl::default(),
            database_password_file: PathBuf::new(),
            database_ca_file: PathBuf::new(),
        }
    }
}

/// `$SYS` topics.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sys {
    /// Seconds between two publications; 0 for never.
    pub(crate) interval_s: u32,
    /// Which clients may read other clients' path statistics there.
    pub(crate) clients: ClientStatistics,
}

impl Default for Sys {
    fn default() -> Self {
        Sys { interval_s: 10, clients: ClientStatistics::default() }
    }
}

/// The log on standard error.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Log {
    /// A level or a filter; see [`crate::logging`].
    pub(crate) level: String,
    pub(crate) format: Format,
}

impl Default for Log {
    fn default() -> Self {
        Log { level: "info".to_owned(), format: Format::Text }
    }
}
