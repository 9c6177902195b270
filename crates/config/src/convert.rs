//! Converts the sections to the other crates' types, and reads the files that they name.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fulmar_broker::access::AccessRules;
use fulmar_broker::auth::{AccessControl, JwtVerifier, Logins, PasswordFile};
use fulmar_broker::{Limits, ListenerPolicy};
use fulmar_certs::{CertError, files};
use fulmar_congestion::Congestion;
use fulmar_transport::{QuicKeys, QuicSettings, ServerId, TransportLimits};

use super::acl_rule::AclRule;
use super::document::Config;
use super::memory::Parts;
#[cfg(feature = "platform")]
use super::sections::Platform;
use super::sections::{Anonymous, Auto, Coap, Enabled, Http, LimitsConfig, Quic, Storage, set};
use super::store_part::StorePart;
use super::upstream::Upstream;
use fulmar_text::Usage;

/// The password file in the data folder that the first start creates if there is no other way to log in.
const PASSWORDS_FILE: &str = "passwords";

fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}

impl Config {
    /// Returns the division of the budget for memory.
    pub fn memory(&self) -> Parts {
        let parts = Parts::divide(self.memory_limit());
        self.store_part().map_or(parts, |store| store.lower(parts))
    }

    /// `[limits] memory` in bytes.
    pub fn memory_limit(&self) -> u64 {
        // Checked when the configuration was read.
        self.limits.memory.bytes().unwrap_or(u64::MAX)
    }

    /// Bytes of request bodies that may be in memory.
    pub fn buffered_bodies(&self) -> usize {
        // One body must fit.
        let least = self.http.max_body_bytes.max(1024 * 1024);
        self.http.max_buffered_body_bytes.min(self.memory().bodies.max(least))
    }
}

/// Size of the receivers that a worker may always remember, in bytes; those of a few thousand topics.
const MIN_CACHED_ROUTE_BYTES: usize = 1 << 20;

impl LimitsConfig {
    /// Bytes of incomplete packets that a worker may hold.
    fn incomplete_per_worker(&self, parts: Parts, workers: usize) -> usize {
        // Each worker must be able to receive a packet.
        let least = self.max_packet_bytes + 65_536;
        self.max_partial_bytes_per_worker.min((parts.incomplete / workers.max(1)).max(least))
    }
}

impl LimitsConfig {
    /// Bounds of the broker.
    pub fn broker(&self, storage: &Storage, parts: Parts, workers: usize) -> Limits {
        let Limits {
            max_cached_routes,
            max_cached_route_bytes,
            large_message_bytes,
            large_bytes_per_turn,
            ..
        } = Limits::default();
        // Without `..`, here and below: a new field does not compile until it has its key or stands in the line above.
        Limits {
            max_packet_bytes: self.max_packet_bytes,
            max_connections: self.max_connections,
            max_client_id_bytes: self.max_client_id_bytes,
            receive_maximum: self.receive_maximum,
            max_in_flight: self.max_in_flight,
            topic_alias_maximum: self.topic_alias_maximum,
            max_keep_alive_s: (self.max_keep_alive_s > 0).then_some(self.max_keep_alive_s),
            max_session_expiry_s: self.max_session_expiry_s,
            max_sessions: self.max_sessions,
            max_subscriptions_per_session: self.max_subscriptions_per_session,
            max_wildcard_subscriptions_per_user: self.max_wildcard_subscriptions_per_user,
            max_flows_per_session: self.max_flows_per_session,
            max_retained_messages: self.max_retained_messages,
            max_retained_bytes: self.max_retained_bytes.min(parts.retained),
            max_queued_messages: self.max_queued_messages,
            max_queued_bytes: self.max_queued_bytes,
            drop_policy: self.drop_policy,
            max_outbox_bytes: self.max_outbox_bytes,
            max_connection_outbox_bytes: self.max_connection_outbox_bytes,
            max_storage_backlog: self.max_storage_backlog,
            storage_stall_timeout: seconds(storage.stall_timeout_s),
            max_publishes_per_s: self.max_publishes_per_s,
            max_publish_bytes_per_s: self.max_publish_bytes_per_s,
            rate_policy: self.rate_policy,
            max_connects_per_s_per_address: self.max_connects_per_s_per_address,
            large_message_bytes,
            large_bytes_per_turn,
            connect_timeout: seconds(self.connect_timeout_s),
            memory: parts.broker,
            max_cached_routes,
            max_cached_route_bytes: max_cached_route_bytes
                .min((parts.routes / workers.max(1)).max(MIN_CACHED_ROUTE_BYTES)),
        }
    }

    /// Bounds of the stream transports.
    pub fn transport(&self, parts: Parts, workers: usize) -> TransportLimits {
        let TransportLimits {
            linger,
            max_partial_bytes_per_connection,
            max_read_bytes_per_turn,
            ..
        } = TransportLimits::default();
        TransportLimits {
            handshake_timeout: seconds(self.handshake_timeout_s),
            max_partial_bytes_per_worker: self.incomplete_per_worker(parts, workers),
            linger,
            max_partial_bytes_per_connection,
            max_read_bytes_per_turn,
        }
    }
}

impl Http {
    /// Bounds of the HTTP endpoint; `limits` has those that all listeners share.
    pub fn limits(&self, limits: &LimitsConfig, parts: Parts) -> fulmar_http::Limits {
        let fulmar_http::Limits { linger, .. } = fulmar_http::Limits::default();
        fulmar_http::Limits {
            max_connections: limits.max_connections.min(parts.http_connections),
            handshake_timeout: seconds(limits.handshake_timeout_s),
            header_timeout: seconds(limits.handshake_timeout_s),
            max_header_bytes: self.max_header_bytes,
            max_body_bytes: self.max_body_bytes,
            request_timeout: seconds(self.request_timeout_s),
            idle_timeout: seconds(self.idle_timeout_s),
            max_concurrent_requests: self.max_concurrent_requests,
            linger,
        }
    }
}

impl Coap {
    /// Bounds of the CoAP server.
    pub fn limits(&self, parts: Parts) -> fulmar_coap::Limits {
        let fulmar_coap::Limits {
            timing,
            max_requests_per_peer,
            max_waiting_notifications,
            max_szx,
            ..
        } = fulmar_coap::Limits::default();
        fulmar_coap::Limits {
            max_peers: self.max_peers,
            max_body_bytes: self.max_body_bytes,
            max_buffered_bytes: self.max_buffered_bytes.min(parts.coap),
            max_observations_per_peer: self.max_observations_per_peer,
            timing,
            max_requests_per_peer,
            max_waiting_notifications,
            max_szx,
        }
    }
}

impl Quic {
    /// Converts `bbr = true`, the setting before `congestion = "bbr"`.
    pub fn rename_bbr(&mut self) -> Result<(), Usage> {
        if std::mem::take(&mut self.bbr) {
            if self.congestion == Congestion::Adaptive {
                let text = "[quic] bbr = true contradicts congestion = \"adaptive\"; leave out bbr";
                return Err(Usage(text.to_owned()));
            }
            self.congestion = Congestion::Bbr;
        }
        Ok(())
    }

    /// Settings of the QUIC listeners.
    fn settings(
        &self,
        keys: QuicKeys,
        limits: &LimitsConfig,
        server_id: Option<ServerId>,
    ) -> QuicSettings {
        let QuicSettings { retry_above, max_handshakes, losses, keys, .. } =
            QuicSettings::new(keys);
        QuicSettings {
            idle_timeout: seconds(self.idle_timeout_s),
            handshake_timeout: seconds(limits.handshake_timeout_s),
            max_streams: self.max_streams,
            stream_window_bytes: self.stream_window_bytes,
            connection_window_bytes: self.connection_window_bytes,
            min_send_window_bytes: u64::from(self.min_send_window_bytes),
            retry: self.retry,
            early_data: self.early_data,
            congestion: self.congestion,
            copies: self.copies,
            mtu_discovery: self.mtu_discovery,
            qlog_dir: set(&self.qlog_dir).map(Path::to_owned),
            retry_above,
            max_handshakes,
            losses,
            keys,
            server_id,
        }
    }
}

impl Storage {
    /// Options of the store.
    pub fn options(&self, part: Option<StorePart>) -> fulmar_store::Options {
        let defaults = fulmar_store::Options::default();
        fulmar_store::Options {
            commit_interval: Duration::from_millis(u64::from(self.commit_interval_ms)),
            commit_max_ops: self.commit_max_ops,
            max_bytes: part.map(|part| part.database),
            log_pages: part.map_or(defaults.log_pages, |part| part.log_pages),
            ..defaults
        }
    }
}

#[cfg(feature = "platform")]
impl Platform {
    /// The platform's form.
    ///
    /// # Errors
    /// As for [`Platform::database`].
    pub fn settings(&self) -> anyhow::Result<fulmar_platform::Settings> {
        Ok(fulmar_platform::Settings {
            token_lifetime_s: self.token_lifetime_s,
            max_requests_per_s: self.max_requests_per_s,
            photo_bytes_per_day: self.max_photo_bytes_per_day,
            monitoring: fulmar_platform::Monitoring {
                raw_days: self.raw_days,
                hour_days: self.hour_days,
                day_days: self.day_days,
            },
            time_zone: fulmar_platform::time_zone(&self.time_zone)
                .map_err(|error| Usage(format!("[platform] time_zone: {error}")))?,
            database: self.database()?,
            webhook_allowlist: self.webhook_allowlist()?,
            // The whole configuration decides.
            disk: fulmar_platform::DiskLimits::default(),
            ..fulmar_platform::Settings::default()
        })
    }

    /// Addresses to which webhooks may connect.
    ///
    /// # Errors
    /// An entry is invalid.
    pub fn webhook_allowlist(&self) -> anyhow::Result<fulmar_platform::WebhookAllowlist> {
        let allowlist = fulmar_platform::WebhookAllowlist::new(&self.webhook_allow);
        Ok(allowlist.map_err(|error| Usage(format!("[platform] webhook_allow: {error}")))?)
    }

    /// The platform's database.
    ///
    /// # Errors
    /// The address is invalid, or the password's file cannot be read.
    pub fn database(&self) -> anyhow::Result<fulmar_platform::Database> {
        let read = |path: &Path| {
            files::read_secret_line(path).context("[platform] database_password_file")
        };
        let password = set(&self.database_password_file).map(read).transpose()?;
        self.database_with(password.as_deref())
    }

    /// Like [`Platform::database`], with this password.
    pub fn database_with(
        &self,
        password: Option<&str>,
    ) -> anyhow::Result<fulmar_platform::Database> {
        let ca_file = set(&self.database_ca_file);
        let database = fulmar_platform::Database::parse(&self.database.0, password, ca_file);
        Ok(database.map_err(|error| Usage(format!("[platform] {error}")))?)
    }
}

impl Config {
    /// True if everybody on this machine may see the broker's overview: where a client without credentials could connect.
    #[cfg(feature = "admin")]
    pub fn has_open_overview(&self) -> bool {
        self.listeners.https.iter().all(|address| self.allows_anonymous("https", *address))
    }

    /// Whether clients may have any user name where anonymous clients may connect, unless the store has users.
    #[cfg(feature = "platform")]
    pub fn names_are_labels(&self) -> bool {
        let auth = &self.auth;
        let others = !auth.password_file.as_os_str().is_empty() || !auth.http.url.is_empty();
        auth.allow_anonymous != Anonymous::Never && !others
    }

    /// Settings of the QUIC listeners.
    pub fn quic_settings(&self, keys: QuicKeys) -> QuicSettings {
        self.quic.settings(keys, &self.limits, self.cluster.server_id)
    }

    /// Whether there is a platform. A gateway has none by default: its messages are viewed upstream, and it should be
    /// small.
    #[cfg_attr(not(feature = "platform"), allow(dead_code, reason = "nobody asks"))]
    pub fn has_platform(&self) -> bool {
        let wanted = match self.platform.enabled {
            Enabled::Set(value) => value,
            Enabled::By(Auto::Auto) => !self.is_gateway(),
        };
        wanted && !self.listeners.https.is_empty()
    }

    /// Whether the identity store has clients.
    pub fn has_identities(&self) -> bool {
        fulmar_identity::Store::has_clients(&self.data_dir().join(fulmar_identity::FILE))
    }

    /// The file of the broker's users: the configured one, or one in the data folder, where the first administrator of
    /// earlier versions is.
    pub fn password_file(&self) -> Option<PathBuf> {
        let created = || Some(self.data_dir().join(PASSWORDS_FILE)).filter(|file| file.is_file());
        set(&self.auth.password_file).map(Path::to_owned).or_else(created)
    }

    /// Authentication and access rules, with the files they name.
    ///
    /// # Errors
    /// A file cannot be read, or its content is invalid.
    pub fn access_control(&self) -> anyhow::Result<AccessControl> {
        let auth = &self.auth;
        let passwords = self.password_file();
        if let Some(file) = &passwords {
            self.check_secret(file).map_err(|error| Usage(format!("[auth] {error}")))?;
        }
        let passwords = passwords.as_deref().map(PasswordFile::load).transpose();
        let passwords = passwords.map_err(|error| Usage(format!("[auth] {error}")))?;
        let jwt = set(&auth.jwt_key_file)
            .map(|path| -> anyhow::Result<JwtVerifier> {
                let key = std::fs::read(path);
                let key = key.with_context(|| format!("[auth] jwt_key_file {}", path.display()))?;
                let issuer = (!auth.jwt_issuer.is_empty()).then(|| auth.jwt_issuer.clone());
                let verifier = JwtVerifier::new(&auth.jwt_algorithm, &key)?;
                if verifier.has_shared_key() {
                    files::check_secret(path).context("[auth] jwt_key_file")?;
                }
                Ok(verifier.for_audiences(auth.jwt_audience.clone()).requiring_issuer(issuer))
            })
            .transpose()?;
        let rules = self.acl.rules.iter().map(AclRule::rule).collect();
        let rules = AccessRules::new(rules, self.acl.default_allow)
            .map_err(|(filter, error)| Usage(format!("[[acl.rules]] topic {filter:?}: {error}")))?;
        let session_owner = self.auth.session_owner;
        let logins = Arc::new(Logins::new(passwords));
        Ok(AccessControl { logins, jwt, rules, session_owner, ..AccessControl::default() })
    }

    /// Checks that the files which the configuration names can be read.
    ///
    /// # Errors
    /// A file cannot be read; the error has its key and path.
    pub fn check_files(&self) -> Result<(), Usage> {
        self.unreadable_files().next().map_or(Ok(()), Err)
    }

    /// The files that the configuration names, each with its key.
    pub fn files(&self) -> impl Iterator<Item = (String, &Path)> {
        let files = [
            ("[auth] password_file", &self.auth.password_file),
            ("[auth] jwt_key_file", &self.auth.jwt_key_file),
            ("[auth.http] token_file", &self.auth.http.token_file),
            ("[auth.http] ca_file", &self.auth.http.ca_file),
            ("[tls] cert", &self.tls.cert),
            ("[tls] key", &self.tls.key),
            ("[tls] client_ca", &self.tls.client_ca),
            ("[acme] ca_file", &self.acme.ca_file),
            ("[coap] psk_file", &self.coap.psk_file),
            ("[otlp] headers_file", &self.otlp.headers_file),
        ];
        let files = files.map(|(key, path)| (key.to_owned(), path.as_path()));
        let lists = self.tls.crl_files.iter();
        let lists = lists.map(|path| ("[tls] crl_files".to_owned(), path.as_path()));
        let files = files
            .into_iter()
            .chain(lists)
            .chain(self.upstreams().flat_map(Upstream::files))
            .chain(self.sinks.iter().flat_map(|(name, sink)| sink.files(name)))
            .chain(self.cluster.files());
        files.filter_map(|(key, path)| Some((key, set(path)?)))
    }

    /// An error for each of these files that cannot be read, with its key and path.
    pub fn unreadable_files(&self) -> impl Iterator<Item = Usage> {
        self.files().filter_map(|(key, path)| {
            let Err(error) = std::fs::File::open(path) else {
                let exposed = self.is_secret(&key).then(|| self.check_secret(path).err())??;
                return Some(Usage(format!("{key}: {exposed}")));
            };
            let what_to_do = for_unreadable_file(error.kind(), &key, path);
            Some(Usage(format!("{key} {}: {error}{what_to_do}", path.display())))
        })
    }

    /// Checks a file of secrets. One in the data folder was written here.
    fn check_secret(&self, file: &Path) -> Result<(), CertError> {
        match file.starts_with(self.data_dir()) {
            true => files::read_own_secret(file).map(drop),
            false => files::check_secret(file),
        }
    }

    /// Whether the file under this key has a secret. That of `[tls] key` is checked with its certificate.
    fn is_secret(&self, key: &str) -> bool {
        match key.rsplit(' ').next() {
            Some("jwt_key_file") => self.auth.jwt_algorithm == "HS256",
            Some("key") => key != "[tls] key",
            Some(
                "password_file" | "token_file" | "secret_file" | "psk_file" | "headers_file"
                | "credentials_file",
            ) => true,
            _ => false,
        }
    }

    /// The policy of the listener `name` at `address`.
    pub fn policy(&self, name: &str, address: SocketAddr) -> Arc<ListenerPolicy> {
        let allow_anonymous = self.allows_anonymous(name, address);
        Arc::new(ListenerPolicy { name: name.into(), allow_anonymous })
    }
}

/// Advice about a file that cannot be read, as the end of an error.
fn for_unreadable_file(error: ErrorKind, key: &str, path: &Path) -> String {
    let path = path.display();
    match error {
        ErrorKind::NotFound if key == "[auth] password_file" => {
            format!("; create it with `fulmar passwd USER --file {path}`")
        }
        ErrorKind::NotFound if key == "[tls] client_ca" => {
            "; `fulmar cert ca` creates a CA, or leave this setting out".to_owned()
        }
        ErrorKind::NotFound => "; create it, or leave this setting out".to_owned(),
        // The owner, because a private key may have no other readers.
        ErrorKind::PermissionDenied => format!(
            "; the server's user must be able to read it: for the service, run `chown fulmar {path}`"
        ),
        _ => String::new(),
    }
}

impl Anonymous {
    /// Whether anonymous clients may connect at this address.
    pub fn at(self, address: SocketAddr) -> bool {
        match self {
            Anonymous::Always => true,
            Anonymous::Loopback => address.ip().is_loopback(),
            Anonymous::Never => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_files_error_says_what_to_do() {
        let hint = |error, key| for_unreadable_file(error, key, Path::new("/etc/fulmar/x"));
        for (error, key, expected) in [
            (
                ErrorKind::NotFound,
                "[auth] password_file",
                "`fulmar passwd USER --file /etc/fulmar/x`",
            ),
            (ErrorKind::NotFound, "[upstream] ca_file", "; create it, or leave this setting out"),
            (ErrorKind::PermissionDenied, "[upstream] key", "`chown fulmar /etc/fulmar/x`"),
        ] {
            assert!(hint(error, key).ends_with(expected), "{}", hint(error, key));
        }
        assert_eq!(hint(ErrorKind::IsADirectory, "[tls] key"), "");
    }

    #[cfg(feature = "platform")]
    #[test]
    fn defaults_are_those_of_the_platform() {
        let (section, settings) = (Platform::default(), fulmar_platform::Settings::default());
        let converted = section.settings().expect("defaults are valid");
        assert_eq!(converted.monitoring, settings.monitoring);
        let limits = |settings: &fulmar_platform::Settings| {
            let requests = settings.max_requests_per_s;
            (settings.token_lifetime_s, requests, settings.photo_bytes_per_day)
        };
        assert_eq!(limits(&converted), limits(&settings));
    }
}
