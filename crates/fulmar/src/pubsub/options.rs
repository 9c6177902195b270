//! The options `pub` and `sub` share, and what the client library makes of them.

use std::path::PathBuf;

use anyhow::Context;
use fulmar_client::{Fallback, Message, Options, QoS, Trust, Version, Will};

use super::explain;
use crate::exit::Usage;

/// Where to connect and as whom.
#[derive(clap::Args, Debug)]
pub(super) struct Connection {
    /// Broker: mqtt://, mqtts://, quic://, ws:// or wss:// HOST[:PORT]
    url: String,
    /// Protocol version: 5 or 311
    #[arg(short = 'V', long, value_name = "VERSION", default_value = "5", value_parser = version)]
    protocol_version: Version,
    /// Client identifier; the broker chooses one if there is none
    #[arg(short = 'i', long, value_name = "ID", default_value = "")]
    id: String,
    /// User name
    #[arg(short, long, value_name = "NAME")]
    username: Option<String>,
    /// Password or token; better given in the environment, where others do not see it
    #[arg(short = 'P', long, env = "FULMAR_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Keep alive in seconds, 0 for none
    #[arg(short, long, value_name = "SECONDS", default_value_t = 60)]
    keepalive: u16,
    /// Resume the session of this client identifier, and keep it after the end
    #[arg(short = 'c', long, requires = "id")]
    disable_clean_session: bool,
    /// Seconds the broker keeps the session; with -c alone, a day
    #[arg(long, value_name = "SECONDS")]
    session_expiry: Option<u32>,
    /// Authorities to believe, a PEM file; else the development CA here and the system's
    #[arg(long, value_name = "FILE", help_heading = "TLS")]
    cafile: Option<PathBuf>,
    /// Client certificate chain, a PEM file
    #[arg(long, value_name = "FILE", requires = "key", help_heading = "TLS")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert", help_heading = "TLS")]
    key: Option<PathBuf>,
    /// Believe any broker: for experiments only
    #[arg(long, conflicts_with = "cafile", help_heading = "TLS")]
    insecure: bool,
    /// Dial TLS over TCP at this port too, should UDP be blocked; the first way to work wins
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "8883")]
    #[arg(require_equals = true)]
    fallback: Option<u16>,
    /// Topic of the will, published by the broker when this client is lost
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
    /// The library's form.
    ///
    /// # Errors
    /// Usage.
    pub(super) fn options(&self) -> anyhow::Result<Options> {
        let mut options = Options::new(&self.url).map_err(explain)?;
        options.version = self.protocol_version;
        options.client_id.clone_from(&self.id);
        options.username.clone_from(&self.username);
        options.password = self.password.as_ref().map(|password| password.clone().into_bytes());
        options.keep_alive_s = self.keepalive;
        options.clean_start = !self.disable_clean_session;
        let kept = if self.disable_clean_session { 24 * 3600 } else { 0 };
        options.session_expiry_s = self.session_expiry.unwrap_or(kept);
        options.trust = match (&self.cafile, self.insecure) {
            (Some(path), _) => Trust::CaFile(path.clone()),
            (None, true) => Trust::Insecure,
            (None, false) => Trust::Auto,
        };
        options.certificate = self.cert.clone().zip(self.key.clone());
        options.fallback = self.fallback.map_or(Fallback::None, |port| Fallback::Race { port });
        options.will = self.will_topic.as_ref().map(|topic| {
            let payload = self.will_payload.clone().unwrap_or_default();
            let mut message = Message::new(topic.clone(), payload).qos(self.will_qos);
            message.retain = self.will_retain;
            Will { message, delay_s: 0 }
        });
        Ok(options)
    }
}

/// Reads a file to publish.
///
/// # Errors
/// Usage: it cannot be read.
pub(super) fn read_payload(path: &std::path::Path) -> anyhow::Result<Vec<u8>> {
    let read = std::fs::read(path).with_context(|| path.display().to_string());
    read.map_err(|error| Usage(format!("{error:#}")).into())
}
