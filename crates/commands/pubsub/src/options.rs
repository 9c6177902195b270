//! The options `pub` and `sub` share, and what the client library makes of them.

use std::path::PathBuf;

use anyhow::Context;
use fulmar_client::{Fallback, Message, Options, PropertyBuf, QoS, Streams, Trust, Version, Will};

use super::properties::PacketProperties;
use super::{explain, password};
use crate::exit::Usage;
use fulmar_command::key_log::KeyLogArgs;

/// Where to connect and as whom.
#[derive(clap::Args, Debug)]
pub struct Connection {
    /// Broker: mqtt://, mqtts://, quic://, ws://, wss://, coap:// or coaps:// HOST[:PORT]; without a
    /// port 1883, 8883, 14567, 8083, 8443, 5683 or 5684. For a cluster, a list: mqtts://HOST[:PORT],HOST[:PORT]
    pub(super) url: String,
    /// Protocol version: 5 or 311
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = version)]
    protocol_version: Version,
    /// Client identifier [default: chosen by the broker]
    #[arg(short = 'i', long, value_name = "ID", default_value = "", hide_default_value = true)]
    id: String,
    /// User name
    #[arg(short, long, value_name = "NAME")]
    username: Option<String>,
    /// Password or token; - asks for it or reads it from standard input. Prefer that or the environment to the
    /// command line, which other users can see
    #[arg(short = 'P', long, value_name = "TEXT", env = "FULMAR_PASSWORD", hide_env_values = true)]
    #[arg(allow_hyphen_values = true)]
    password: Option<String>,
    /// Authentication: send the password, or SCRAM-SHA-256, which does not send it and checks that the broker knows it
    #[arg(long, value_enum, value_name = "HOW", default_value = "password")]
    auth: SignIn,
    /// Keep alive in seconds, 0 for none
    #[arg(short, long, value_name = "SECONDS", default_value_t = 60)]
    keepalive: u16,
    /// Resume the session of this client identifier, and keep it on exit
    #[arg(short = 'c', long, requires = "id")]
    disable_clean_session: bool,
    /// Seconds the broker keeps the session [default with -c: one day]
    #[arg(short = 'x', long, value_name = "SECONDS")]
    session_expiry: Option<u32>,
    /// MQTT 5.0 property, as in mosquitto_pub: -D publish content-type text/plain,
    /// -D connect user-property NAME VALUE; may be given more than once
    #[arg(short = 'D', long = "property", value_names = ["COMMAND", "NAME", "VALUE"])]
    #[arg(num_args = 3..=4, action = clap::ArgAction::Append)]
    property: Vec<String>,
    /// PEM file of trusted CAs [default: the local development CA and the system's]
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    cafile: Option<PathBuf>,
    /// PEM file of the client certificate chain
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "TLS")]
    cert: Option<PathBuf>,
    /// PEM file of the client certificate's private key
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    key: Option<PathBuf>,
    /// Do not verify the broker's certificate: for experiments only
    #[arg(long, conflicts_with = "cafile", help_heading = "TLS")]
    insecure: bool,
    #[command(flatten)]
    key_log: KeyLogArgs,
    /// Also connect by TLS over TCP at this port, in case UDP is blocked; the first to succeed wins
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "8883")]
    #[arg(require_equals = true)]
    fallback: Option<u16>,
    /// Streams over QUIC, so that a lost packet delays its own topic only
    #[arg(long, value_enum, value_name = "HOW", default_value = "single", help_heading = "QUIC")]
    streams: Spread,
    /// Maximum number of streams beside the control stream; further topics share them
    #[arg(long, value_name = "COUNT", default_value_t = 16, help_heading = "QUIC")]
    max_streams: u16,
    /// Streams that keep subscriptions and QoS state when they are lost; the broker must support MQTT-next flows, as
    /// Fulmar does
    #[arg(long, help_heading = "QUIC")]
    persistent_flows: bool,
    /// Topic of the will, which the broker publishes when it loses this client
    #[arg(long, value_name = "TOPIC", help_heading = "Will")]
    will_topic: Option<String>,
    /// Payload of the will
    #[arg(long, value_name = "TEXT", requires = "will_topic", help_heading = "Will")]
    will_payload: Option<String>,
    /// Quality of service of the will
    #[arg(long, value_name = "QOS", default_value = "0", value_parser = qos)]
    #[arg(requires = "will_topic", help_heading = "Will")]
    will_qos: QoS,
    /// The will is retained
    #[arg(long, requires = "will_topic", help_heading = "Will")]
    will_retain: bool,
    /// Seconds the broker waits for this client before it publishes the will
    #[arg(long, value_name = "SECONDS", default_value_t = 0, requires = "will_topic")]
    #[arg(help_heading = "Will")]
    will_delay: u32,
}

/// Method of authentication.
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum SignIn {
    /// Send it
    Password,
    /// SCRAM-SHA-256 (MQTT 5.0)
    Scram,
}

/// Distribution of messages among streams.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Spread {
    /// One stream for everything
    Single,
    /// A stream for each topic of publications
    Topic,
    /// A stream for each subscription
    Subscription,
    /// A stream for each topic and for each subscription
    Both,
}

/// The library's form of the options, and what they want to be done elsewhere.
pub struct Prepared {
    pub options: Options,
    /// Properties of what is published.
    pub publish: PropertyBuf,
}

/// Parses a quality of service.
pub(super) fn qos(text: &str) -> Result<QoS, String> {
    let number: u8 = text.parse().map_err(|_| "use 0, 1 or 2".to_owned())?;
    QoS::try_from(number).map_err(|error| error.to_string())
}

fn version(text: &str) -> Result<Version, String> {
    match text.trim_start_matches("mqttv") {
        "5" | "5.0" => Ok(Version::V5),
        "311" | "3.1.1" | "4" => Ok(Version::V311),
        _ => Err("use 5 or 311".to_owned()),
    }
}

impl Connection {
    /// The library's form. `stdin_taken` says that standard input brings messages.
    ///
    /// # Errors
    /// Usage.
    pub fn prepare(&self, stdin_taken: bool) -> anyhow::Result<Prepared> {
        let given = PacketProperties::read(&grouped(&self.property)).map_err(Usage)?;
        if self.protocol_version == Version::V311 && !self.property.is_empty() {
            return Err(Usage("-D: MQTT 3.1.1 has no properties; remove -V 311".into()).into());
        }
        let mut options = Options::new(&self.url).map_err(explain)?;
        options.version = self.protocol_version;
        options.client_id.clone_from(&self.id);
        options.username.clone_from(&self.username);
        options.password = self.secret(stdin_taken)?.map(String::into_bytes);
        options.scram = self.auth == SignIn::Scram;
        options.connect_properties = given.connect;
        options.streams = match self.streams {
            Spread::Single => Streams::Single,
            Spread::Topic => Streams::PerTopic,
            Spread::Subscription => Streams::PerSubscription,
            Spread::Both => Streams::PerTopicAndSubscription,
        };
        options.max_data_streams = self.max_streams;
        options.persistent_flows = self.persistent_flows;
        options.publish_before_connack = true;
        options.keep_alive_s = self.keepalive;
        options.clean_start = !self.disable_clean_session;
        let kept = if self.disable_clean_session { 24 * 3600 } else { 0 };
        options.session_expiry_s = self.session_expiry.unwrap_or(kept);
        options.trust = self.trust();
        options.key_log = self.key_log.file(options.url.is_loopback())?;
        options.certificate = self.cert.clone().zip(self.key.clone());
        options.fallback = self.fallback.map_or(Fallback::None, |port| Fallback::Race { port });
        options.will = self.will_topic.as_ref().map(|topic| {
            let payload = self.will_payload.clone().unwrap_or_default();
            let mut message = Message::new(topic.clone(), payload).qos(self.will_qos);
            message.retain = self.will_retain;
            message.properties = given.will;
            Will { message, delay_s: self.will_delay }
        });
        Ok(Prepared { options, publish: given.publish })
    }
}

impl Connection {
    /// Derives the settings for coaps:// from the options.
    pub(super) fn prepare_coap(&self, stdin_taken: bool) -> anyhow::Result<super::coap::TrustArgs> {
        if self.auth == SignIn::Scram {
            return Err(Usage("--auth scram: CoAP has no SCRAM; leave it out".to_owned()).into());
        }
        // A password may be in the environment for other commands.
        let secure = [
            ("-u", self.username.is_some()),
            ("--cafile", self.cafile.is_some()),
            ("--cert", self.cert.is_some()),
        ];
        if let Some(names) = named(&secure).filter(|_| !super::coap::is_secure(&self.url)) {
            let text = format!("{names}: coap:// has no login and no encryption; use coaps://");
            return Err(Usage(text).into());
        }
        let of_mqtt = [
            ("-i", !self.id.is_empty()),
            ("-c", self.disable_clean_session),
            ("-x", self.session_expiry.is_some()),
            ("-D", !self.property.is_empty()),
            ("--will-topic", self.will_topic.is_some()),
            ("--fallback", self.fallback.is_some()),
            ("--persistent-flows", self.persistent_flows),
        ];
        if let Some(names) = named(&of_mqtt) {
            let text = format!("{names}: CoAP has no sessions, wills or properties; leave it out");
            return Err(Usage(text).into());
        }
        Ok(super::coap::TrustArgs {
            username: self.username.clone(),
            key: self.secret(stdin_taken)?,
            certificate: self.cert.clone().zip(self.key.clone()),
            trust: self.trust(),
        })
    }

    fn secret(&self, stdin_taken: bool) -> anyhow::Result<Option<String>> {
        match self.password.as_deref() {
            Some("-") => password::read_password(stdin_taken).map(Some),
            given => Ok(given.map(str::to_owned)),
        }
    }

    fn trust(&self) -> Trust {
        match (&self.cafile, self.insecure) {
            (Some(path), _) => Trust::CaFile(path.clone()),
            (None, true) => Trust::Insecure,
            (None, false) => Trust::Auto,
        }
    }
}

/// The names of the options that are given; `None` if there are none.
fn named(options: &[(&'static str, bool)]) -> Option<String> {
    let given = options.iter().filter(|(_, is_given)| *is_given).map(|(name, _)| *name);
    let given: Vec<&str> = given.collect();
    (!given.is_empty()).then(|| given.join(", "))
}

/// Occurrences of -D out of their words one after the other: only user properties have four.
fn grouped(words: &[String]) -> Vec<Vec<String>> {
    let mut rest = words;
    let mut groups = Vec::new();
    while !rest.is_empty() {
        let four = rest.get(1).is_some_and(|name| name.eq_ignore_ascii_case("user-property"));
        let (group, after) = rest.split_at(rest.len().min(if four { 4 } else { 3 }));
        groups.push(group.to_vec());
        rest = after;
    }
    groups
}

/// Reads a file to publish.
pub(super) fn read_payload(path: &std::path::Path) -> anyhow::Result<Vec<u8>> {
    let read = std::fs::read(path).with_context(|| path.display().to_string());
    read.map_err(|error| Usage(format!("{error:#}")).into())
}
