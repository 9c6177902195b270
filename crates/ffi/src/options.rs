//! Options by name, as `fulmar_options_set` has them: the names are those of [`Options`].

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use fulmar_client::{Backoff, Fallback, Message, Options, QoS, Streams, Trust, Version, Will};
use fulmar_congestion::Congestion;

use crate::failure::Failure;

/// Sets the option of this name.
pub(crate) fn set(options: &mut Options, name: &str, value: &[u8]) -> Result<(), Failure> {
    let value = Value { name, bytes: value };
    match name {
        "version" => {
            options.version = value.one_of(&[("5", Version::V5), ("3.1.1", Version::V311)])?;
        }
        "client_id" => options.client_id = value.text()?.to_owned(),
        "username" => options.username = Some(value.text()?.to_owned()),
        "password" => options.password = Some(value.bytes.to_vec()),
        "scram" => options.scram = value.flag()?,
        "clean_start" => options.clean_start = value.flag()?,
        "session_expiry_s" => options.session_expiry_s = value.number()?,
        "keep_alive_s" => options.keep_alive_s = value.number()?,
        "quic_keep_alive_ms" => options.quic_keep_alive = value.milliseconds()?,
        "congestion" => options.congestion = value.one_of(&CONGESTION)?,
        "copies" => options.copies = value.flag()?,
        "receive_maximum" => options.receive_maximum = value.number()?,
        "acknowledge_by_hand" => options.acknowledge_by_hand = value.flag()?,
        "max_packet_bytes" => options.max_packet_bytes = value.number()?,
        "max_queued_messages" => options.max_queued_messages = value.number()?,
        "max_queued_bytes" => options.max_queued_bytes = value.number()?,
        "streams" => options.streams = value.one_of(&STREAMS)?,
        "max_data_streams" => options.max_data_streams = value.number()?,
        "persistent_flows" => options.persistent_flows = value.flag()?,
        "publish_before_connack" => options.publish_before_connack = value.flag()?,
        "ca_file" => options.trust = Trust::CaFile(value.path()?),
        "insecure" if value.flag()? => options.trust = Trust::Insecure,
        "insecure" if options.trust == Trust::Insecure => options.trust = Trust::Auto,
        "insecure" => {}
        "certificate_file" => certificate(options).0 = value.path()?,
        "key_file" => certificate(options).1 = value.path()?,
        "key_log_file" => options.key_log = Some(value.path()?),
        "fallback_port" => options.fallback = Fallback::Race { port: value.number()? },
        "reconnect" => options.reconnect = value.flag()?.then(|| backoff(options)),
        "reconnect_first_ms" => {
            options.reconnect = Some(Backoff { first: value.milliseconds()?, ..backoff(options) });
        }
        "reconnect_longest_ms" => {
            options.reconnect =
                Some(Backoff { longest: value.milliseconds()?, ..backoff(options) });
        }
        "connect_timeout_ms" => options.connect_timeout = value.milliseconds()?,
        "drain_timeout_ms" => options.drain_timeout = value.milliseconds()?,
        "will_topic" => will(options).message.topic = value.text()?.to_owned(),
        "will_payload" => will(options).message.payload = value.bytes.to_vec().into(),
        "will_qos" => {
            will(options).message.qos =
                QoS::try_from(value.number::<u8>()?).map_err(Failure::from_error)?;
        }
        "will_retain" => will(options).message.retain = value.flag()?,
        "will_delay_s" => will(options).delay_s = value.number()?,
        _ => {
            return Err(Failure::invalid(format!(
                "there is no option {name:?}; fulmar.h lists their names"
            )));
        }
    }
    Ok(())
}

const CONGESTION: [(&str, Congestion); 3] =
    [("cubic", Congestion::Cubic), ("bbr", Congestion::Bbr), ("adaptive", Congestion::Adaptive)];

const STREAMS: [(&str, Streams); 4] = [
    ("single", Streams::Single),
    ("topic", Streams::PerTopic),
    ("subscription", Streams::PerSubscription),
    ("topic-and-subscription", Streams::PerTopicAndSubscription),
];

fn backoff(options: &Options) -> Backoff {
    let (first, longest) = (Duration::from_millis(250), Duration::from_secs(30));
    options.reconnect.unwrap_or(Backoff { first, longest })
}

fn will(options: &mut Options) -> &mut Will {
    options.will.get_or_insert_with(|| Will { message: Message::new("", ""), delay_s: 0 })
}

fn certificate(options: &mut Options) -> &mut (PathBuf, PathBuf) {
    options.certificate.get_or_insert_default()
}

/// The value of an option.
struct Value<'a> {
    name: &'a str,
    bytes: &'a [u8],
}

impl<'a> Value<'a> {
    fn wrong(&self, expected: &str) -> Failure {
        // Its value may be a secret in the wrong place.
        Failure::invalid(format!("the option {:?} needs {expected}", self.name))
    }

    fn text(&self) -> Result<&'a str, Failure> {
        let text = std::str::from_utf8(self.bytes).ok().filter(|text| !text.contains('\0'));
        text.ok_or_else(|| self.wrong("a text in UTF-8 without zero bytes"))
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        Ok(self.text()?.into())
    }

    fn number<T: FromStr>(&self) -> Result<T, Failure> {
        let bits = 8 * size_of::<T>();
        self.text()?.parse().map_err(|_| self.wrong(&format!("a number of at most {bits} bits")))
    }

    fn milliseconds(&self) -> Result<Duration, Failure> {
        self.number::<u32>().map(|number| Duration::from_millis(number.into()))
    }

    fn flag(&self) -> Result<bool, Failure> {
        self.one_of(&[("1", true), ("0", false), ("true", true), ("false", false)])
    }

    fn one_of<T: Copy>(&self, values: &[(&str, T)]) -> Result<T, Failure> {
        let text = self.text()?;
        let found = values.iter().find(|(name, _)| *name == text);
        let names = || values.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.map(|(_, value)| *value).ok_or_else(|| self.wrong(&format!("one of {}", names())))
    }
}
