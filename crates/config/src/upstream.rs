//! `[upstream]` and `[upstreams.NAME]`: the settings that make a broker a gateway, and their conversion.
//!
//! `fulmar.example.toml` and `docs/gateway.md` explain the keys. `fulmar_gateway::mapping` has the rules for mapping
//! topics.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use fulmar_certs::files;
use fulmar_client::{BrokerUrl, Fallback, Options, Transport, Trust, Version};
use fulmar_gateway::mapping::{self, Direction, Mapping, Priority, Rule};
use fulmar_gateway::outbox::{Bounds, Policy};
use fulmar_gateway::uplink_scheduler::{Batching, Window};
use fulmar_mqtt::QoS;
use fulmar_mqtt::codec::MAX_PACKET_BYTES;
use fulmar_mqtt::topic::check_name;
use serde::{Deserialize, Serialize};

use super::section::sections;
use super::sections::{Secret, set};
use fulmar_text::Usage;

/// Messages in flight at once, of any size.
const MAX_IN_FLIGHT: usize = 512;

/// The least limit of packets from upstream, in bytes, so that what is too large for a small broker becomes a dead letter.
const LEAST_MAX_PACKET_BYTES: usize = 1 << 20;

/// The least with MQTT 3.1.1.
const MAX_PACKET_BYTES_3_1_1: u32 = 16 << 20;

sections! {
    /// An upstream broker, and which messages are forwarded.
    pub struct Upstream {
        /// NAME of `[upstreams.NAME]`; `None` for `[upstream]`. Set by [`Config::complete`](super::Config::complete).
        #[serde(skip)]
        pub label: Option<String> = None,
        /// Address of the upstream broker, or those of a cluster's nodes; empty for a broker that is no gateway.
        pub url: String = String::new(),
        /// TCP port of TLS for networks that block UDP; 0 for QUIC only.
        pub fallback_port: u16 = 8883,
        /// The gateway's name; empty for one created at the first start.
        pub name: String = String::new(),
        pub version: Version = Version::default(),
        pub user: String = String::new(),
        pub password: Secret = Secret::default(),
        pub password_file: PathBuf = PathBuf::new(),
        pub token_file: PathBuf = PathBuf::new(),
        pub ca_file: PathBuf = PathBuf::new(),
        pub cert: PathBuf = PathBuf::new(),
        pub key: PathBuf = PathBuf::new(),
        pub keep_alive_s: u16 = 60,
        /// Time for which commands wait upstream for a disconnected gateway.
        pub session_expiry_s: u32 = 7 * 24 * 3600,
        pub outbox: Outbox = Outbox::default(),
        pub batch: Batch = Batch::default(),
        pub up: Vec<Crossing> = Vec::new(),
        pub down: Vec<Crossing> = Vec::new(),
    }

    /// Messages that wait for the link.
    pub struct Outbox {
        pub max_bytes: u64 = 256 << 20,
        /// 0 for no limit.
        pub max_age_s: u32 = 0,
        pub policy: Policy = Policy::default(),
        pub max_in_flight_bytes: usize = 64 << 10,
        /// The dead-letter file; empty for none.
        pub dead_letter_file: PathBuf = PathBuf::new(),
        pub dead_letter_max_bytes: u64 = 16 << 20,
    }

    /// Several messages as one publication.
    pub struct Batch {
        /// Topic of batches; empty for none.
        pub topic: String = String::new(),
        pub max_messages: usize = 200,
        pub max_bytes: usize = 32 << 10,
        pub max_delay_ms: u32 = 1000,
        pub compress: bool = true,
    }
}

/// Messages that are forwarded in one direction.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Crossing {
    filter: String,
    #[serde(default)]
    from_prefix: String,
    #[serde(default)]
    to_prefix: String,
    #[serde(default = "at_least_once")]
    qos: u8,
    #[serde(default)]
    priority: Priority,
}

fn at_least_once() -> u8 {
    1
}

impl Crossing {
    fn rule(&self) -> Result<Rule, String> {
        let qos = match self.qos {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            other => {
                return Err(format!(
                    "qos = {other}: use 0 or 1; with 1 every message has an identifier, by which \
                     duplicates are detected"
                ));
            }
        };
        Ok(Rule {
            filter: self.filter.clone(),
            from_prefix: self.from_prefix.clone(),
            to_prefix: self.to_prefix.clone(),
            qos,
            priority: self.priority,
        })
    }
}

/// Whether Fulmar's platform takes batches at this topic.
fn is_for_platform(topic: &str) -> bool {
    matches!(topic.split('/').collect::<Vec<_>>()[..], ["fulmar", _, "batch", _])
}

impl Upstream {
    /// Whether there is one.
    pub fn is_on(&self) -> bool {
        !self.url.is_empty()
    }

    /// Name of the section: `upstream` or `upstreams.NAME`.
    pub fn section(&self) -> String {
        match &self.label {
            None => "upstream".to_owned(),
            Some(label) => format!("upstreams.{label}"),
        }
    }

    /// Name of the outbox's file in the data folder.
    pub fn outbox_file(&self) -> String {
        match &self.label {
            None => "outbox.db".to_owned(),
            Some(label) => format!("outbox-{label}.db"),
        }
    }

    /// Returns the keys that name files, with their values.
    pub fn files(&self) -> [(String, &Path); 5] {
        let section = self.section();
        [
            ("password_file", &self.password_file),
            ("token_file", &self.token_file),
            ("ca_file", &self.ca_file),
            ("cert", &self.cert),
            ("key", &self.key),
        ]
        .map(|(key, path)| (format!("[{section}] {key}"), path.as_path()))
    }

    /// Checks everything that does not depend on other sections.
    ///
    /// # Errors
    /// A value is invalid; the error has its key and the allowed values.
    pub fn check(&self) -> Result<(), Usage> {
        if !self.is_on() {
            let idle = self.up.is_empty() && self.down.is_empty();
            let text = format!("[{}] up and down need url, the upstream broker", self.section());
            return if idle && self.label.is_none() { Ok(()) } else { Err(Usage(text)) };
        }
        let section = self.section();
        let wrong = |text: String| Err(Usage(format!("[{section}] {text}")));
        let list = self.addresses()?;
        let url = &list[0];
        if !matches!(url.transport, Transport::Quic | Transport::Tls | Transport::Tcp) {
            return wrong(format!("url = {:?}: use quic://, mqtts:// or mqtt://", self.url));
        }
        if !self.name.is_empty() && !is_gateway_name(&self.name) {
            return wrong(format!(
                "name = {:?}: 1 to 64 letters, digits, dots, - and _",
                self.name
            ));
        }
        let secrets = [!self.password.0.is_empty(), is(&self.password_file), is(&self.token_file)];
        if secrets.iter().filter(|set| **set).count() > 1 {
            return wrong("password, password_file and token_file exclude each other".to_owned());
        }
        let local = list.iter().all(BrokerUrl::is_loopback);
        if secrets.contains(&true) && !url.transport.is_secure() && !local {
            return wrong(format!(
                "url = {:?} would send the password in clear text; use quic:// or mqtts://",
                self.url
            ));
        }
        if is(&self.cert) != is(&self.key) {
            return wrong("cert and key go together".to_owned());
        }
        if self.up.is_empty() && self.down.is_empty() {
            return wrong(format!(
                "nothing is forwarded; add [[{section}.up]] or [[{section}.down]]"
            ));
        }
        self.check_numbers()?;
        let (up, down) = (self.mapping("up")?, self.mapping("down")?);
        if self.version == Version::V311
            && let Some((up, down)) = mapping::circle(&up, &down)
        {
            return wrong(format!(
                "what [[{section}.up]] number {up} sends would come back by [[{section}.down]] \
                 number {down}, and MQTT 3.1.1 cannot detect the loop; use version = \"5\", or \
                 prefixes that separate the two directions"
            ));
        }
        Ok(())
    }

    /// Checks that a message of this size, which the broker accepts, does not wait for ever.
    pub fn check_room_for(&self, largest: u64) -> Result<(), Usage> {
        let bytes = self.outbox.max_bytes;
        if self.outbox.policy != Policy::Refuse || bytes >= largest {
            return Ok(());
        }
        Err(Usage(format!(
            "[{}.outbox] max_bytes = {bytes}: with policy = \"refuse\", it must have room for the largest message: set it \
             to {largest} or more, or lower [limits] max_packet_bytes",
            self.section()
        )))
    }

    fn check_numbers(&self) -> Result<(), Usage> {
        let wrong = |text: &str| Err(Usage(format!("[{}] {text}", self.section())));
        if self.outbox.max_bytes < 64 << 10 {
            return wrong("outbox: max_bytes is at least 65536");
        }
        if !(1024..=16 << 20).contains(&self.outbox.max_in_flight_bytes) {
            return wrong("outbox: max_in_flight_bytes is from 1024 to 16777216");
        }
        if self.outbox.dead_letter_max_bytes < 64 << 10 {
            return wrong("outbox: dead_letter_max_bytes is at least 65536");
        }
        let batch = &self.batch;
        if batch.topic.is_empty() {
            return Ok(());
        }
        if check_name(&batch.topic).is_err() || batch.topic.starts_with('$') {
            return wrong("batch: topic must be a topic name");
        }
        if self.version == Version::V311 {
            return wrong(
                "batch: needs version = \"5\", whose properties distinguish a batch from a message",
            );
        }
        if !(2..=fulmar_gateway::batch::MAX_MESSAGES).contains(&batch.max_messages) {
            return wrong("batch: max_messages is from 2 to 4096");
        }
        if !(256..=256 << 10).contains(&batch.max_bytes) {
            return wrong("batch: max_bytes is from 256 to 262144");
        }
        Ok(())
    }

    /// Returns the upstream broker's addresses, at least one.
    ///
    /// # Errors
    /// One is not an address of a broker.
    pub fn addresses(&self) -> Result<Vec<BrokerUrl>, Usage> {
        let section = self.section();
        BrokerUrl::list(&self.url).map_err(|error| Usage(format!("[{section}] url: {error}")))
    }

    /// The rules of one direction, `up` or `down`.
    ///
    /// # Errors
    /// A rule is invalid; the error names it.
    pub fn mapping(&self, direction: &str) -> Result<Mapping, Usage> {
        let (way, crossings) = match direction {
            "up" => (Direction::Up, &self.up),
            _ => (Direction::Down, &self.down),
        };
        let wrong = |(number, error): (usize, String)| {
            Usage(format!("[[{}.{direction}]] number {number}: {error}", self.section()))
        };
        let rules = (1..)
            .zip(crossings)
            .map(|(number, crossing)| crossing.rule().map_err(|error| wrong((number, error))));
        let rules = rules.collect::<Result<Vec<_>, _>>()?;
        Mapping::new(way, rules).map_err(|(number, error)| wrong((number, error.to_string())))
    }

    /// Bounds of the outbox.
    pub fn bounds(&self) -> Bounds {
        let age = self.outbox.max_age_s;
        Bounds {
            max_bytes: self.outbox.max_bytes,
            max_age_ms: (age > 0).then_some(u64::from(age) * 1000),
            policy: self.outbox.policy,
            max_file_bytes: None,
        }
    }

    /// The dead-letter file, and its largest size.
    pub fn dead_letters(&self) -> Option<(&Path, u64)> {
        set(&self.outbox.dead_letter_file).map(|path| (path, self.outbox.dead_letter_max_bytes))
    }

    /// The limits of messages in flight.
    pub fn window(&self) -> Window {
        Window { messages: MAX_IN_FLIGHT, bytes: self.outbox.max_in_flight_bytes }
    }

    /// Returns the limits of the batches in which messages are combined; `None` if they are not.
    pub fn batching(&self) -> Option<Batching> {
        let batch = &self.batch;
        (!batch.topic.is_empty()).then_some(Batching {
            messages: batch.max_messages,
            bytes: batch.max_bytes,
            delay_ms: u64::from(batch.max_delay_ms),
            only_sensors: is_for_platform(&batch.topic),
        })
    }

    /// The password or token; its file is read now.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn secret(&self) -> anyhow::Result<Option<String>> {
        if let Some(path) = set(&self.password_file).or(set(&self.token_file)) {
            let secret = files::read_secret_line(path);
            return Ok(Some(secret.with_context(|| format!("[{}]", self.section()))?));
        }
        Ok(Some(self.password.0.clone()).filter(|text| !text.is_empty()))
    }

    /// The largest packet that is received from upstream, for the limit of the broker here. What that cannot accept becomes a
    /// dead letter; far larger messages are not worth their memory. An MQTT 5 upstream does not send them. A 3.1.1 one does
    /// not know the limit, and would send such a message again for ever.
    pub fn max_packet_bytes(&self, local: usize) -> u32 {
        let useful = local.saturating_mul(2).clamp(LEAST_MAX_PACKET_BYTES, MAX_PACKET_BYTES);
        let useful = u32::try_from(useful).unwrap_or(u32::MAX);
        match self.version {
            Version::V5 => useful,
            Version::V311 => useful.max(MAX_PACKET_BYTES_3_1_1),
        }
    }

    /// The client's options; files with secrets are read now.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn options(&self, name: &str) -> anyhow::Result<Options> {
        let mut options = Options::new(&self.url)?;
        options.publish_before_connack = true;
        // Messages from upstream are acknowledged when the local broker has stored them.
        options.acknowledge_by_hand = true;
        options.version = self.version;
        name.clone_into(&mut options.client_id);
        options.username = (!self.user.is_empty()).then(|| self.user.clone());
        options.password = self.secret()?.map(String::into_bytes);
        options.clean_start = false;
        options.session_expiry_s = self.session_expiry_s.max(1);
        options.keep_alive_s = self.keep_alive_s;
        options.bridge = self.version == Version::V311;
        // At the end, not waiting loses nothing: the messages are in the outbox.
        options.drain_timeout = Duration::from_secs(2);
        options.max_queued_messages = MAX_IN_FLIGHT * 2;
        options.trust = match set(&self.ca_file) {
            Some(path) => Trust::CaFile(path.to_owned()),
            None => Trust::Auto,
        };
        options.certificate = set(&self.cert)
            .zip(set(&self.key))
            .map(|(cert, key)| (cert.to_owned(), key.to_owned()));
        if options.url.transport == Transport::Quic && self.fallback_port > 0 {
            options.fallback = Fallback::Race { port: self.fallback_port };
        }
        Ok(options)
    }
}

fn is(path: &Path) -> bool {
    set(path).is_some()
}

fn is_gateway_name(name: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(known)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Upstream)) -> String {
        let up = Crossing {
            filter: "sensor/#".into(),
            from_prefix: String::new(),
            to_prefix: "fulmar/rural/".into(),
            qos: 1,
            priority: Priority::Normal,
        };
        let mut upstream =
            Upstream { url: "quic://broker.example".into(), up: vec![up], ..Upstream::default() };
        upstream.check().unwrap();
        change(&mut upstream);
        upstream.check().unwrap_err().to_string()
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_do() {
        type Change<'a> = &'a dyn Fn(&mut Upstream);
        let cases: [(&str, Change<'_>); 10] = [
            ("need url", &|u| u.url.clear()),
            ("SCHEME://HOST", &|u| u.url = "broker".into()),
            ("use quic://", &|u| u.url = "wss://broker".into()),
            ("letters, digits", &|u| u.name = "a b".into()),
            ("exclude each other", &|u| {
                (u.password, u.token_file) = (Secret("x".into()), "t".into());
            }),
            ("in clear text", &|u| {
                (u.password, u.url) = (Secret("x".into()), "mqtt://broker".into());
            }),
            ("nothing is forwarded", &|u| u.up.clear()),
            ("[[upstream.up]] number 1: qos = 2", &|u| u.up[0].qos = 2),
            ("number 1: filter", &|u| u.up[0].filter = "a/#/b".into()),
            ("at least 65536", &|u| u.outbox.max_bytes = 1),
        ];
        for (part, change) in cases {
            let error = refused(change);
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }

    #[test]
    fn what_the_broker_here_cannot_accept_by_far_is_not_received() {
        let bytes =
            |version, local| Upstream { version, ..Upstream::default() }.max_packet_bytes(local);
        assert_eq!(bytes(Version::V5, 3 << 20), 6 << 20);
        assert_eq!(bytes(Version::V5, 4096), 1 << 20, "what is too large becomes a dead letter");
        assert_eq!(bytes(Version::V311, 4096), 16 << 20, "it would be sent again for ever");
        assert_eq!(bytes(Version::V311, 64 << 20), 128 << 20);
    }

    #[test]
    fn directions_of_3_1_1_are_kept_apart() {
        let error = refused(|u| {
            u.version = Version::V311;
            u.down = vec![Crossing { filter: "fulmar/#".into(), ..u.up[0].clone() }];
            u.down[0].to_prefix.clear();
        });
        assert!(error.contains("would come back") && error.contains("number 1"), "{error}");
    }

    #[test]
    fn secrets_come_from_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        files::write(&path, b"secret\n", true).unwrap();
        let mut upstream = Upstream { url: "quic://h".into(), ..Upstream::default() };
        upstream.token_file = path;
        let options = upstream.options("gw").unwrap();
        assert_eq!(options.password.as_deref(), Some(b"secret".as_slice()));
        assert_eq!(options.fallback, Fallback::Race { port: 8883 });
        upstream.token_file = "/none".into();
        let error = upstream.options("gw").unwrap_err();
        assert!(format!("{error:#}").contains("/none"), "{error:#}");
    }
}
