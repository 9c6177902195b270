//! Checks beyond the types of single values: keys that belong together, ranges, and listeners that no client could use.

use std::net::SocketAddr;
use std::path::Path;

use fulmar_transport::tls::ClientAuth;

use super::cluster;
use super::document::Config;
use super::mqttsn;
use super::otlp;
use super::range::{Ranges, within};
use super::sections::{Challenge, MAX_KEPT_DAYS, set};
use super::sinks;
use fulmar_text::Usage;

pub(crate) fn check(config: &Config) -> anyhow::Result<()> {
    together(config)?;
    config.proxy_protocol.check(&config.listeners)?;
    auth_http(config)?;
    acme(config)?;
    otlp::check(&config.otlp)?;
    cluster::check(config)?;
    ranges(config)?;
    upstream(config)?;
    sinks::check(config)?;
    mqttsn::check(&config.mqtt_sn, &config.listeners.mqtt_sn, config.auth.allow_anonymous)?;
    #[cfg(feature = "platform")]
    database(config)?;
    #[cfg(feature = "platform")]
    config.platform.webhook_allowlist()?;
    // Users of a platform can log in, too, and those of a cluster; whether there are any is known after it is opened.
    if !config.cluster.is_on() && (!cfg!(feature = "platform") || !config.has_platform()) {
        ways_in(config)?;
    }
    for address in &config.listeners.coaps {
        let keys = is_set(&config.coap.psk_file);
        let certificates = config.tls.client_auth == ClientAuth::Required;
        // On loopback, where it is by default, it is harmless.
        let harmless = address.ip().is_loopback() || config.auth.allow_anonymous.at(*address);
        if !keys && !certificates && !harmless {
            return Err(Usage(format!(
                "[listeners] coaps = {address}: no client could connect there: set [coap] \
                 psk_file, or [tls] client_auth = \"required\" with client_ca"
            ))
            .into());
        }
    }
    for address in &config.listeners.coap {
        // On loopback, as by default, it is then skipped.
        if !address.ip().is_loopback() && !config.auth.allow_anonymous.at(*address) {
            return Err(Usage(format!(
                "[listeners] coap = {address}: no client could connect there: CoAP without DTLS \
                 has no credentials, and anonymous clients are not allowed. Next: set coap = [], \
                 or, on a network you trust, [auth] allow_anonymous = \"always\""
            ))
            .into());
        }
    }
    Ok(())
}

#[cfg(feature = "platform")]
/// Checks the platform's database, except its password: a command of another user may not read that file.
fn database(config: &Config) -> anyhow::Result<()> {
    let platform = &config.platform;
    if platform.database_with(None)? == fulmar_platform::Database::File
        && (is_set(&platform.database_password_file) || is_set(&platform.database_ca_file))
    {
        let text = "[platform] database_password_file and database_ca_file go with a database of postgres://";
        return Err(Usage(text.to_owned()).into());
    }
    Ok(())
}

fn is_set(path: &Path) -> bool {
    set(path).is_some()
}

fn together(config: &Config) -> Result<(), Usage> {
    let (tls, auth) = (&config.tls, &config.auth);
    let wrong = |text: &str| Err(Usage(text.to_owned()));
    if is_set(&tls.cert) != is_set(&tls.key) {
        return wrong(
            "[tls] cert and key go together: set both, or neither for a development certificate",
        );
    }
    if tls.client_auth != ClientAuth::Off && !is_set(&tls.client_ca) {
        return wrong(
            "[tls] client_auth needs client_ca, the CA that signs the clients' certificates",
        );
    }
    if !tls.crl_files.is_empty() && tls.client_auth == ClientAuth::Off {
        return wrong(
            "[tls] crl_files needs client_auth = \"required\" or \"optional\", and client_ca, whose lists they are",
        );
    }
    if auth.jwt_algorithm.is_empty() == is_set(&auth.jwt_key_file) {
        return wrong(
            "[auth] jwt_algorithm and jwt_key_file go together: set both, or neither for no tokens",
        );
    }
    if auth.jwt_algorithm.is_empty()
        && !(auth.jwt_audience.is_empty() && auth.jwt_issuer.is_empty())
    {
        return wrong(
            "[auth] jwt_audience and jwt_issuer are about tokens: set jwt_algorithm and jwt_key_file, too",
        );
    }
    if auth.jwt_audience.iter().any(String::is_empty) {
        return wrong("[auth] jwt_audience has an empty name");
    }
    if let Some(origin) = config.http.allowed_origins.iter().find(|origin| !is_origin(origin)) {
        let text =
            "[http] allowed_origins: {:?} is not an origin; write SCHEME://HOST[:PORT], null or *";
        return wrong(&text.replace("{:?}", &format!("{origin:?}")));
    }
    if let Some(host) = config.http.allowed_hosts.iter().find(|host| !is_host_name(host)) {
        let text =
            format!("[http] allowed_hosts: {host:?} is not a host name without a port, or *");
        return wrong(&text);
    }
    let rules = &config.acl.rules;
    if let Some(at) = rules.iter().position(|rule| rule.subjects() > 1) {
        let text = "[[acl.rules]] number {}: user, client and anonymous exclude each other";
        return wrong(&text.replace("{}", &(at + 1).to_string()));
    }
    Ok(())
}

fn auth_http(config: &Config) -> Result<(), Usage> {
    let http = &config.auth.http;
    if http.url.is_empty() {
        return Ok(());
    }
    let url = http.url.parse::<http::Uri>().ok();
    let scheme = url.as_ref().and_then(http::Uri::scheme_str);
    if !matches!(scheme, Some("http" | "https")) || url.is_none_or(|url| url.host().is_none()) {
        // Not the URL: it may contain a secret.
        let text = "[auth.http] url: write http://HOST/PATH or https://HOST/PATH";
        return Err(Usage(text.to_owned()));
    }
    if http.certificates && config.tls.client_auth == ClientAuth::Off {
        let text = "[auth.http] certificates needs [tls] client_auth and client_ca: without them, no client \
                    has a certificate";
        return Err(Usage(text.to_owned()));
    }
    http.check_ranges("auth.http")
}

/// Maximum number of names in one certificate that CAs accept.
const MAX_DOMAINS: usize = 100;

fn acme(config: &Config) -> Result<(), Usage> {
    let acme = &config.acme;
    let wrong = |text: String| Err(Usage(format!("[acme] {text}")));
    if acme.challenge == Challenge::Http01 {
        return wrong(
            "challenge = \"http-01\" is not supported; use \"tls-alpn-01\", for which port 443 of \
             the domains must reach the https listener"
                .to_owned(),
        );
    }
    if !acme.is_on() {
        return Ok(());
    }
    if acme.domains.len() > MAX_DOMAINS {
        return wrong(format!("domains: {MAX_DOMAINS} at most in one certificate"));
    }
    if let Some(name) = acme.domains.iter().find(|name| !is_domain(name)) {
        return wrong(format!(
            "domains: {name:?} is not a host name of letters, digits, - and . such as \
             broker.example.org; wildcards and addresses cannot be validated over TLS"
        ));
    }
    if !acme.agree_to_terms {
        return wrong(
            "agree_to_terms = true is needed: read the CA's terms first, which its directory names"
                .to_owned(),
        );
    }
    if !is_https_url(&acme.directory) {
        return wrong(format!("directory = {:?}: must be an https:// URL", acme.directory));
    }
    if let Some(contact) = acme.contact.iter().find(|contact| !contact.starts_with("mailto:")) {
        return wrong(format!("contact: {contact:?} is invalid; write mailto:NAME@HOST"));
    }
    if is_set(&config.tls.cert) {
        return wrong("domains and [tls] cert exclude each other".to_owned());
    }
    if config.listeners.https.is_empty() {
        return wrong("needs an https listener, where names are validated".to_owned());
    }
    Ok(())
}

/// Whether requests over HTTPS can be made to it.
pub fn is_https_url(text: &str) -> bool {
    let https = |url: http::Uri| url.scheme() == Some(&http::uri::Scheme::HTTPS);
    text.parse().is_ok_and(https)
}

/// A name as public CAs certify it: at least two labels, and the last one is not a number.
fn is_domain(name: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let top = name.rsplit('.').next().unwrap_or_default();
    name.len() <= 253
        && name.contains('.')
        && name.split('.').all(label)
        && !top.bytes().all(|byte| byte.is_ascii_digit())
}

/// A host's name without a port, or `*` for any.
fn is_host_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text == "*" || !text.is_empty() && text.bytes().all(fits)
}

/// An origin as browsers write it: no path, no slash at the end.
fn is_origin(text: &str) -> bool {
    let host = |(_, host): (&str, &str)| !host.is_empty() && !host.contains(['/', ' ', '*']);
    ["*", "null"].contains(&text) || text.split_once("://").is_some_and(host)
}

fn upstream(config: &Config) -> Result<(), Usage> {
    config.check_upstreams()?;
    if config.is_gateway() && !config.storage.enabled {
        let text = "[upstream] needs [storage] enabled = true, which keeps what devices publish";
        return Err(Usage(text.to_owned()));
    }
    Ok(())
}

fn ranges(config: &Config) -> Result<(), Usage> {
    let sections: [(&str, &dyn Ranges); 8] = [
        ("server", &config.server),
        ("quic", &config.quic),
        ("http", &config.http),
        ("coap", &config.coap),
        ("limits", &config.limits),
        ("auth", &config.auth),
        ("storage", &config.storage),
        ("platform", &config.platform),
    ];
    sections.into_iter().try_for_each(|(name, section)| section.check_ranges(name))?;
    let platform = &config.platform;
    let (raw, hour) = (platform.raw_days, platform.hour_days);
    within("platform", "hour_days", hour, raw..=MAX_KEPT_DAYS)?;
    within("platform", "day_days", platform.day_days, hour..=MAX_KEPT_DAYS)?;
    config.limits.memory.bytes()?;
    config.limits.disk.bytes(&config.data_dir()).map(drop)
}

impl Config {
    /// Checks that a client could log in at each listener if the platform, or the cluster, has no users.
    ///
    /// # Errors
    /// None could; the error names the listener.
    #[cfg(any(feature = "platform", feature = "cluster"))]
    pub fn check_ways_in(&self) -> Result<(), Usage> {
        ways_in(self)
    }

    /// Whether a listener that other machines reach lets nobody in, apart from users of the platform: then the first
    /// start creates a user.
    pub fn needs_user(&self) -> bool {
        let listeners = self.listeners.mqtt_listeners().into_iter();
        let mut all =
            listeners.flat_map(|(name, addresses)| addresses.iter().map(move |a| (name, a)));
        all.any(|(name, &address)| {
            self.is_reachable(name, address) && !has_way_in(self, name, address)
        })
    }

    /// Whether other machines reach the platform's pages and API.
    #[cfg(feature = "platform")]
    pub fn has_reachable_pages(&self) -> bool {
        self.listeners.https.iter().any(|&address| self.is_reachable("https", address))
    }
}

/// Whether a client could log in at each listener, apart from users of the platform. The user that the first start
/// creates for other machines can log in at all of them.
fn ways_in(config: &Config) -> Result<(), Usage> {
    if config.needs_user() {
        return Ok(());
    }
    for (name, addresses) in config.listeners.mqtt_listeners() {
        for address in addresses {
            usable(config, name, *address)?;
        }
    }
    Ok(())
}

/// Whether the configuration has a way to log in at a listener.
fn has_way_in(config: &Config, name: &str, address: SocketAddr) -> bool {
    let (auth, tls) = (&config.auth, &config.tls);
    let credentials = config.password_file().is_some()
        || !auth.jwt_algorithm.is_empty()
        || !auth.http.url.is_empty()
        || config.has_identities();
    let certificates = name != "mqtt" && name != "ws" && tls.client_auth != ClientAuth::Off;
    credentials || certificates || config.allows_anonymous(name, address)
}

/// A listener that would refuse every client is an error.
fn usable(config: &Config, name: &str, address: SocketAddr) -> Result<(), Usage> {
    if has_way_in(config, name, address) {
        return Ok(());
    }
    let platform = match cfg!(feature = "platform") && config.has_platform() {
        true => " create a user of the platform with `fulmar user add` or `fulmar user token`;",
        false => "",
    };
    Err(Usage(format!(
        "[listeners] {name} = {address}: no client could connect there: anonymous clients are not \
         allowed and no authentication is configured. Next:{platform} set [auth] password_file (`fulmar \
         passwd` creates one), jwt_algorithm or [tls] client_ca; or, on a network you trust, \
         [auth] allow_anonymous = \"always\""
    )))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sections::{Anonymous, Enabled};

    fn with(change: impl FnOnce(&mut Config)) -> Result<(), String> {
        let mut config = Config::default();
        change(&mut config);
        check(&config).map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_good() {
        with(|_| ()).unwrap();
    }

    #[test]
    fn halves_are_refused() {
        assert!(with(|c| c.tls.cert = "a.pem".into()).unwrap_err().contains("cert and key"));
        assert!(
            with(|c| c.tls.client_auth = ClientAuth::Required).unwrap_err().contains("client_ca")
        );
        let origins = |list: &[&str]| {
            let list = list.iter().map(|&origin| origin.to_owned()).collect();
            with(|c| c.http.allowed_origins = list)
        };
        origins(&["*", "null", "https://a.example:8443", "app://local"]).unwrap();
        assert!(origins(&["a.example"]).unwrap_err().contains("\"a.example\""));
        origins(&["https://a.example/"]).unwrap_err();
        let hosts = |names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            with(|c| c.http.allowed_hosts = names)
        };
        hosts(&["*", "fulmar", "broker_1.svc.example"]).unwrap();
        for wrong in ["", "a:14568", "http://a", "*.a"] {
            assert!(hosts(&[wrong]).unwrap_err().contains("allowed_hosts"), "{wrong}");
        }
        assert!(with(|c| c.auth.jwt_key_file = "k".into()).unwrap_err().contains("jwt_algorithm"));
        let audience = |list: &[&str]| {
            with(|c| {
                (c.auth.jwt_algorithm, c.auth.jwt_key_file) = ("HS256".to_owned(), "k".into());
                c.auth.jwt_audience = list.iter().map(|&name| name.to_owned()).collect();
            })
        };
        audience(&["mqtt", "https://broker.example"]).unwrap();
        assert!(audience(&["mqtt", ""]).unwrap_err().contains("jwt_audience"));
        let alone = with(|c| c.auth.jwt_issuer = "us".into()).unwrap_err();
        assert!(alone.contains("jwt_key_file"), "{alone}");
    }

    #[test]
    fn acme_says_what_it_lacks() {
        let acme = |change: &dyn Fn(&mut Config)| {
            with(|config| {
                config.acme.domains = vec!["broker.example.org".to_owned()];
                config.acme.agree_to_terms = true;
                change(config);
            })
        };
        acme(&|_| ()).unwrap();
        let refused = |part: &str, change: &dyn Fn(&mut Config)| {
            let error = acme(change).unwrap_err();
            assert!(error.starts_with("[acme] ") && error.contains(part), "{error}");
        };
        refused("agree_to_terms", &|c| c.acme.agree_to_terms = false);
        refused("tls-alpn-01", &|c| c.acme.challenge = Challenge::Http01);
        for directory in ["", "http://acme.example", "https://", "https://a b", "/dir"] {
            refused("https://", &|c| c.acme.directory = directory.to_owned());
        }
        refused("mailto:", &|c| c.acme.contact = vec!["me@example.org".to_owned()]);
        refused("[tls] cert", &|c| (c.tls.cert, c.tls.key) = ("a".into(), "b".into()));
        refused("https listener", &|c| c.listeners.https.clear());
        for name in
            ["", "localhost", "*.example.org", "192.0.2.1", "a..b", "-a.b", "a_b.c", "a.b:1"]
        {
            refused("wildcards", &|c| c.acme.domains.push(name.to_owned()));
        }
    }

    #[test]
    fn ranges_name_key_value_and_bounds() {
        let error = with(|c| c.quic.idle_timeout_s = 0).unwrap_err();
        assert_eq!(error, "[quic] idle_timeout_s = 0: must be from 1 to 86400");
    }

    #[test]
    fn values_that_would_stop_all_clients_are_refused() {
        let refused = |key: &str, change: &dyn Fn(&mut Config)| {
            let error = with(change).expect_err(key);
            assert!(error.contains(key) && error.contains("must be from"), "{error}");
        };
        refused("[limits] handshake_timeout_s", &|c| c.limits.handshake_timeout_s = 0);
        refused("[limits] max_partial_bytes_per_worker", &|c| {
            c.limits.max_partial_bytes_per_worker = 0;
        });
        refused("[quic] stream_window_bytes", &|c| c.quic.stream_window_bytes = 0);
        refused("[quic] connection_window_bytes", &|c| c.quic.connection_window_bytes = 0);
        refused("[http] max_buffered_body_bytes", &|c| c.http.max_buffered_body_bytes = 0);
        refused("[storage] commit_interval_ms", &|c| c.storage.commit_interval_ms = u32::MAX);
        refused("[storage] commit_max_ops", &|c| c.storage.commit_max_ops = 0);
    }

    #[test]
    fn headers_are_not_limited_below_what_http_1_1_can_keep() {
        let error = with(|c| c.http.max_header_bytes = 8191).unwrap_err();
        assert_eq!(error, "[http] max_header_bytes = 8191: must be from 8192 to 1048576");
        with(|c| c.http.max_header_bytes = 8192).unwrap();
    }

    #[test]
    fn coap_without_dtls_is_for_the_anonymous() {
        let open: SocketAddr = "192.0.2.1:5683".parse().unwrap();
        let with_password = |c: &mut Config| {
            c.listeners.coap = vec![open];
            c.auth.password_file = "passwords".into();
        };
        assert!(with(with_password).unwrap_err().contains("coap = 192.0.2.1:5683"));
        with(|c| {
            with_password(c);
            c.auth.allow_anonymous = Anonymous::Always;
        })
        .unwrap();
    }

    #[test]
    fn off_loopback_somebody_can_log_in_or_a_user_is_needed() {
        let needs = |change: &dyn Fn(&mut Config)| {
            // A data folder without users.
            let mut config = Config::default().with_data_dir("/none");
            config.platform.enabled = Enabled::Set(false);
            change(&mut config);
            check(&config).unwrap();
            config.needs_user()
        };
        let open: SocketAddr = "192.0.2.1:1883".parse().unwrap();
        assert!(!needs(&|_| ()));
        assert!(needs(&|c| c.listeners.mqtt = vec![open]));
        assert!(!needs(&|c| {
            c.listeners.mqtt = vec![open];
            c.auth.allow_anonymous = Anonymous::Always;
        }));
        assert!(!needs(&|c| {
            c.listeners.mqtt = vec![open];
            c.auth.password_file = "passwords".into();
        }));
        let certificates = |c: &mut Config| {
            c.tls.client_ca = "ca.pem".into();
            c.tls.client_auth = ClientAuth::Required;
        };
        assert!(!needs(&|c| {
            c.listeners.quic = vec![open];
            certificates(c);
        }));
        assert!(
            needs(&|c| {
                c.listeners.ws = vec![open];
                certificates(c);
            }),
            "certificates do not help on a listener without TLS"
        );
        // The user can log in on loopback, too.
        assert!(needs(&|c| {
            c.listeners.mqtt.push(open);
            c.auth.allow_anonymous = Anonymous::Never;
        }));
    }

    #[test]
    fn a_listener_that_refuses_everybody_is_refused() {
        let mut config = Config::default().with_data_dir("/none");
        config.auth.allow_anonymous = Anonymous::Never;
        assert!(ways_in(&config).unwrap_err().to_string().contains("127.0.0.1:1883"));
        // There may be users of the platform, or not yet.
        if cfg!(feature = "platform") {
            check(&config).unwrap();
            assert!(ways_in(&config).unwrap_err().to_string().contains("fulmar user add"));
        }
    }
}
