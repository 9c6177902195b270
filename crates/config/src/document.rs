//! The whole configuration: all sections, and which of their keys a running server reads again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cluster::Cluster;
use super::mqttsn::MqttSn;
use super::otlp::Otlp;
use super::proxy_protocol::ProxyProtocol;
use super::sections::{
    Acl, Acme, Auth, Coap, Http, Lab, LimitsConfig, Listeners, Log, Platform, Quic, Server,
    Storage, Sys, Tls,
};
use super::sinks::Sink;
use super::upstream::Upstream;

/// The configuration of a server. `Config::default()` is that of `fulmar serve` without a configuration file.
///
/// Its keys are those of the configuration file, which `docs/reference/settings.md` lists. [`Config::from_file`] and
/// [`Config::from_toml`] read and check them. Relative paths are relative to the process's working directory.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub server: Server,
    pub listeners: Listeners,
    pub proxy_protocol: ProxyProtocol,
    pub tls: Tls,
    pub acme: Acme,
    pub quic: Quic,
    pub http: Http,
    pub coap: Coap,
    pub mqtt_sn: MqttSn,
    pub limits: LimitsConfig,
    pub auth: Auth,
    pub acl: Acl,
    pub storage: Storage,
    pub platform: Platform,
    pub sys: Sys,
    pub otlp: Otlp,
    pub cluster: Cluster,
    pub upstream: Upstream,
    pub upstreams: BTreeMap<String, Upstream>,
    pub sinks: BTreeMap<String, Sink>,
    pub log: Log,
    pub lab: Lab,
}

impl Config {
    /// The keys, as `section.key`, that differ from `old` and require a restart.
    pub fn changes_requiring_restart(&self, old: &Config) -> Vec<String> {
        let [old, new] = [old, self].map(|config| serde_json::to_value(config).unwrap_or_default());
        let mut changed = Vec::new();
        for (section, keys) in new.as_object().into_iter().flatten() {
            for (key, value) in keys.as_object().into_iter().flatten() {
                let name = format!("{section}.{key}");
                if old[section][key] != *value && !reloaded(&name) {
                    changed.push(name);
                }
            }
        }
        changed.sort_unstable();
        changed
    }
}

/// Whether a change of this key applies on SIGHUP.
fn reloaded(key: &str) -> bool {
    let at_start = ["auth.allow_anonymous", "auth.http", "tls.client_auth"].contains(&key);
    !at_start && ["acl.", "auth.", "tls."].iter().any(|section| key.starts_with(section))
}
