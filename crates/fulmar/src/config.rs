//! The configuration file: one TOML file, every key with a default, unknown keys refused.
//!
//! `fulmar.example.toml` at the root of the repository documents every key; a test holds the two
//! together. Environment variables `FULMAR_SECTION__KEY` override the file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use figment::Figment;
use figment::providers::{Env, Format, Serialized, Toml};
use fulmar_broker::access::{AccessRules, Action, Rule, Who};
use fulmar_broker::auth::{Gate, JwtVerifier, PasswordFile};
use fulmar_broker::{DropPolicy, Limits};
use serde::{Deserialize, Serialize};

/// Everything that can be configured.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) listeners: Listeners,
    pub(crate) tls: Tls,
    pub(crate) quic: Quic,
    pub(crate) limits: LimitsConfig,
    pub(crate) auth: Auth,
    pub(crate) acl: Acl,
    pub(crate) storage: Storage,
    pub(crate) sys: Sys,
}

/// The program itself.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    /// Worker threads; 0 for one a core.
    pub(crate) workers: usize,
    /// Data folder; empty for the user's default one.
    pub(crate) data_dir: PathBuf,
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
    pub(crate) http: Vec<SocketAddr>,
}

impl Default for Listeners {
    fn default() -> Self {
        let local = |port| vec![SocketAddr::from(([127, 0, 0, 1], port))];
        Listeners {
            mqtt: local(1883),
            mqtts: local(8883),
            ws: local(8083),
            wss: local(8443),
            quic: local(14567),
            http: local(9090),
        }
    }
}

/// Certificates.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    /// Certificate chain in PEM; empty for the development authority's.
    pub(crate) cert: PathBuf,
    /// Its private key, mode 0600.
    pub(crate) key: PathBuf,
    /// Further names and addresses in the development certificate.
    pub(crate) names: Vec<String>,
    /// Authority of client certificates.
    pub(crate) client_ca: PathBuf,
    /// Whether clients show certificates.
    pub(crate) client_auth: ClientAuth,
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ClientAuth {
    #[default]
    Off,
    Optional,
    Required,
}

/// When QUIC clients must prove their address.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Retry {
    #[default]
    Auto,
    Always,
    Never,
}

/// QUIC.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Quic {
    pub(crate) idle_timeout_s: u32,
    pub(crate) max_streams: u32,
    pub(crate) early_data: bool,
    pub(crate) retry: Retry,
    pub(crate) bbr: bool,
    pub(crate) qlog_dir: PathBuf,
}

impl Default for Quic {
    fn default() -> Self {
        Quic {
            idle_timeout_s: 30,
            max_streams: 64,
            early_data: true,
            retry: Retry::Auto,
            bbr: false,
            qlog_dir: PathBuf::new(),
        }
    }
}

/// Bounds; see [`Limits`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LimitsConfig {
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
    pub(crate) max_flows_per_session: usize,
    pub(crate) max_retained_messages: usize,
    pub(crate) max_retained_bytes: usize,
    pub(crate) max_queued_messages: usize,
    pub(crate) max_queued_bytes: usize,
    pub(crate) drop_policy: DropPolicy,
    pub(crate) max_outbox_bytes: usize,
    pub(crate) connect_timeout_s: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let limits = Limits::default();
        LimitsConfig {
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
            max_flows_per_session: limits.max_flows_per_session,
            max_retained_messages: limits.max_retained_messages,
            max_retained_bytes: limits.max_retained_bytes,
            max_queued_messages: limits.max_queued_messages,
            max_queued_bytes: limits.max_queued_bytes,
            drop_policy: limits.drop_policy,
            max_outbox_bytes: limits.max_outbox_bytes,
            connect_timeout_s: 10,
        }
    }
}

impl LimitsConfig {
    /// The broker's form.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            max_packet_bytes: self.max_packet_bytes,
            max_connections: self.max_connections,
            max_client_id_bytes: self.max_client_id_bytes,
            receive_maximum: self.receive_maximum.max(1),
            max_in_flight: self.max_in_flight.max(1),
            topic_alias_maximum: self.topic_alias_maximum,
            max_keep_alive_s: (self.max_keep_alive_s > 0).then_some(self.max_keep_alive_s),
            max_session_expiry_s: self.max_session_expiry_s,
            max_sessions: self.max_sessions,
            max_subscriptions_per_session: self.max_subscriptions_per_session,
            max_flows_per_session: self.max_flows_per_session,
            max_retained_messages: self.max_retained_messages,
            max_retained_bytes: self.max_retained_bytes,
            max_queued_messages: self.max_queued_messages,
            max_queued_bytes: self.max_queued_bytes,
            drop_policy: self.drop_policy,
            max_outbox_bytes: self.max_outbox_bytes,
            connect_timeout: Duration::from_secs(u64::from(self.connect_timeout_s)),
            ..Limits::default()
        }
    }
}

/// Who may come in without credentials.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Anonymous {
    /// On loopback listeners only.
    #[default]
    Loopback,
    Always,
    Never,
}

/// Authentication.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    pub(crate) allow_anonymous: Anonymous,
    /// `user:argon2-hash` lines; empty for none.
    pub(crate) password_file: PathBuf,
    /// HS256, RS256, ES256 or EdDSA; empty for no tokens.
    pub(crate) jwt_algorithm: String,
    /// The secret or the public key.
    pub(crate) jwt_key_file: PathBuf,
}

/// Access rules.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Acl {
    /// What holds where no rule matches.
    pub(crate) default_allow: bool,
    pub(crate) rules: Vec<AclRule>,
}

impl Default for Acl {
    fn default() -> Self {
        Acl { default_allow: true, rules: Vec::new() }
    }
}

/// One access rule.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AclRule {
    allow: bool,
    topic: String,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    client: Option<String>,
    #[serde(default)]
    anonymous: bool,
    #[serde(default)]
    action: RuleAction,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum RuleAction {
    #[default]
    Both,
    Publish,
    Subscribe,
}

/// Durable state.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Storage {
    /// Off: sessions and retained messages live as long as the process.
    pub(crate) enabled: bool,
    /// Shortest time between two commits, in milliseconds.
    pub(crate) commit_interval_ms: u32,
}

impl Default for Storage {
    fn default() -> Self {
        Storage { enabled: true, commit_interval_ms: 0 }
    }
}

/// `$SYS` topics.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Sys {
    /// Seconds between two publications; 0 for never.
    pub(crate) interval_s: u32,
}

impl Default for Sys {
    fn default() -> Self {
        Sys { interval_s: 10 }
    }
}

impl Config {
    /// Reads the file, if one is named, and the environment.
    pub(crate) fn load(path: Option<&Path>) -> anyhow::Result<Config> {
        let mut figment = Figment::from(Serialized::defaults(Config::default()));
        if let Some(path) = path {
            if !path.is_file() {
                bail!("{}: no such file", path.display());
            }
            figment = figment.merge(Toml::file_exact(path));
        }
        // FULMAR_DATA and FULMAR_PASSWORD are other things; only SECTION__KEY is configuration.
        let env = Env::prefixed("FULMAR_").filter(|key| key.as_str().contains("__")).split("__");
        let config = figment.merge(env).extract::<Config>().map_err(explain)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.tls.cert.as_os_str().is_empty() != self.tls.key.as_os_str().is_empty() {
            bail!(
                "[tls] cert and key go together: set both, or neither for a development certificate"
            );
        }
        if self.tls.client_auth != ClientAuth::Off && self.tls.client_ca.as_os_str().is_empty() {
            bail!(
                "[tls] client_auth needs client_ca, the authority that signs the clients' certificates"
            );
        }
        if self.auth.jwt_algorithm.is_empty() != self.auth.jwt_key_file.as_os_str().is_empty() {
            bail!("[auth] jwt_algorithm and jwt_key_file go together");
        }
        Ok(())
    }

    /// Authentication and access rules.
    pub(crate) fn gate(&self) -> anyhow::Result<Gate> {
        let auth = &self.auth;
        let passwords = match auth.password_file.as_os_str().is_empty() {
            true => None,
            false => Some(PasswordFile::load(&auth.password_file)?),
        };
        let jwt = match auth.jwt_algorithm.as_str() {
            "" => None,
            algorithm => {
                let path = &auth.jwt_key_file;
                let key = std::fs::read(path).with_context(|| path.display().to_string())?;
                Some(JwtVerifier::new(algorithm, &key)?)
            }
        };
        let rules = self.acl.rules.iter().map(AclRule::rule).collect();
        let rules =
            AccessRules::new(rules, self.acl.default_allow).map_err(|(filter, error)| {
                anyhow::anyhow!("[[acl.rules]] topic {filter:?}: {error}")
            })?;
        Ok(Gate { passwords, jwt, rules })
    }
}

impl AclRule {
    fn rule(&self) -> Rule {
        let who = match (&self.user, &self.client) {
            (Some(user), _) => Who::User(user.as_str().into()),
            (None, Some(client)) => Who::Client(client.as_str().into()),
            (None, None) if self.anonymous => Who::Anonymous,
            (None, None) => Who::Anyone,
        };
        let action = match self.action {
            RuleAction::Both => None,
            RuleAction::Publish => Some(Action::Publish),
            RuleAction::Subscribe => Some(Action::Subscribe),
        };
        Rule { allow: self.allow, who, action, filter: self.topic.as_str().into() }
    }
}

/// Says where the error is, and names the nearest key for one that does not exist.
fn explain(error: figment::Error) -> anyhow::Error {
    let mut texts = Vec::new();
    for error in error {
        let place = error.path.join(".");
        let source = error.metadata.as_ref().and_then(|metadata| metadata.source.as_ref());
        let source = source.map_or("configuration".to_owned(), ToString::to_string);
        let text = match &error.kind {
            figment::error::Kind::UnknownField(name, known) => {
                let near = nearest(name, known);
                let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
                format!("unknown key `{name}`{near} Known here: {}", known.join(", "))
            }
            kind => format!("{place}: {kind}"),
        };
        texts.push(format!("{source}: {text}"));
    }
    anyhow::anyhow!("{}", texts.join("\n"))
}

fn nearest(name: &str, known: &[&str]) -> Option<String> {
    let scored = known.iter().map(|key| (strsim::jaro_winkler(name, key), *key));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.7).then(|| best.1.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../../fulmar.example.toml");

    fn load(text: &str) -> anyhow::Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fulmar.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path))
    }

    #[test]
    fn the_example_is_the_defaults() {
        assert_eq!(load(EXAMPLE).unwrap(), Config::default());
    }

    #[test]
    fn the_example_documents_every_key() {
        let json = serde_json::to_value(Config::default()).unwrap();
        for (section, keys) in json.as_object().unwrap() {
            assert!(EXAMPLE.contains(&format!("[{section}]")), "[{section}] is missing");
            for key in keys.as_object().unwrap().keys() {
                let documented = EXAMPLE
                    .lines()
                    .any(|line| line.trim_start_matches("# ").starts_with(&format!("{key} =")));
                assert!(documented || key == "rules", "[{section}] {key} is missing");
            }
        }
        assert!(EXAMPLE.contains("[[acl.rules]]"));
    }

    #[test]
    fn an_unknown_key_names_the_nearest_one() {
        let error = load("[limits]\nmax_packet_byte = 5\n").unwrap_err().to_string();
        assert!(error.contains("did you mean `max_packet_bytes`?"), "{error}");
        assert!(error.contains("fulmar.toml"), "{error}");
    }

    #[test]
    fn a_wrong_type_names_the_key() {
        let error = load("[quic]\nidle_timeout_s = \"long\"\n").unwrap_err().to_string();
        assert!(error.contains("quic.idle_timeout_s"), "{error}");
    }

    #[test]
    fn half_a_certificate_is_refused() {
        let error = load("[tls]\ncert = \"a.pem\"\n").unwrap_err().to_string();
        assert!(error.contains("cert and key go together"), "{error}");
    }
}
