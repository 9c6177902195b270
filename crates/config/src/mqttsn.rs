//! `[mqtt_sn]`: limits, names, times and the user of the MQTT-SN listeners.
//!
//! `fulmar.example.toml` and `docs/mqtt-sn.md` explain the keys.

use std::net::SocketAddr;
use std::time::Duration;

use fulmar_broker::User;
use fulmar_mqtt::topic::check_name;
use fulmar_mqttsn::Settings;
use serde::{Deserialize, Serialize};

use super::range::Ranges as _;
use super::section::sections;
use super::sections::Anonymous;
use fulmar_text::Usage;

/// The largest payload and topic that fit into a datagram, with their headers.
const MAX_MESSAGE_BYTES: usize = 65_000;

sections! {
    /// MQTT-SN; see [`Settings`].
    pub struct MqttSn (settings = Settings::default()) {
        /// The user of all clients; empty for anonymous clients.
        pub user: String = String::new(),
        pub gateway_id: u8 = settings.gateway_id,
        /// Destination of ADVERTISE; empty for none.
        pub advertise: Vec<SocketAddr> = Vec::new(),
        pub advertise_interval_s: u16 = 900 => 1..=u16::MAX,
        pub retry_s: u32 = 2 => 1..=3600,
        pub retries: u32 = settings.retries => 1..=16,
        pub max_silence_s: u32 = 86_400 => 1..=366 * 24 * 3600,
        pub max_clients: usize = settings.max_clients => 1..=100_000,
        pub max_new_clients_per_s: u32 = settings.max_new_clients_per_s => 1..=100_000,
        pub max_topics_per_client: usize = settings.max_topics => 1..=10_000,
        pub max_queued_messages: usize = settings.max_queued => 1..=100_000,
        pub max_queued_bytes: usize = settings.max_queued_bytes => 1024..=usize::MAX,
        pub max_message_bytes: usize = settings.max_message_bytes => 64..=MAX_MESSAGE_BYTES,
        pub predefined: Vec<Predefined> = Vec::new(),
    }
}

/// A topic that has an identifier without being registered.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Predefined {
    pub id: u16,
    pub topic: String,
}

impl MqttSn {
    /// Settings of the server.
    pub fn settings(&self, max_client_id_bytes: usize) -> Settings {
        let predefined = self.predefined.iter().map(|one| (one.id, one.topic.as_str().into()));
        Settings {
            gateway_id: self.gateway_id,
            predefined: predefined.collect(),
            retry: Duration::from_secs(self.retry_s.into()),
            retries: self.retries,
            max_silence: Duration::from_secs(self.max_silence_s.into()),
            max_clients: self.max_clients,
            max_new_clients_per_s: self.max_new_clients_per_s,
            max_topics: self.max_topics_per_client,
            max_queued: self.max_queued_messages,
            max_queued_bytes: self.max_queued_bytes,
            max_message_bytes: self.max_message_bytes,
            max_client_id_bytes,
            ..Settings::default()
        }
    }

    /// Whether a client could be served at this address.
    pub fn serves(&self, anonymous: Anonymous, address: SocketAddr) -> bool {
        !self.user.is_empty() || anonymous.at(address)
    }
}

/// Checks values that belong together: the section's own, its listeners, and whether anonymous clients may connect.
pub(crate) fn check(
    settings: &MqttSn,
    listeners: &[SocketAddr],
    anonymous: Anonymous,
) -> Result<(), Usage> {
    let wrong = |text: String| Err(Usage(text));
    for address in listeners {
        // On loopback it is then skipped, like CoAP.
        if !address.ip().is_loopback() && !settings.serves(anonymous, *address) {
            return wrong(format!(
                "[listeners] mqtt_sn = {address}: no client could connect there: MQTT-SN has no \
                 credentials, and anonymous clients are not allowed. Next: set [mqtt_sn] user to \
                 the user name for all its clients, with [[acl.rules]] for that user's rights; \
                 or, on a network you trust, [auth] allow_anonymous = \"always\""
            ));
        }
    }
    if !settings.user.is_empty()
        && let Err(error) = User::check_name(&settings.user)
    {
        return wrong(format!("[mqtt_sn] user = {:?}: {error}", settings.user));
    }
    for one in &settings.predefined {
        if one.id == 0 || one.id == u16::MAX {
            return wrong(format!(
                "[[mqtt_sn.predefined]] id = {}: must be from 1 to 65534",
                one.id
            ));
        }
        if let Err(error) = check_name(&one.topic) {
            return wrong(format!("[[mqtt_sn.predefined]] topic = {:?}: {error}", one.topic));
        }
        if settings.predefined.iter().filter(|other| other.id == one.id).count() > 1 {
            return wrong(format!("[[mqtt_sn.predefined]] id = {}: defined twice", one.id));
        }
    }
    settings.check_ranges("mqtt_sn")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::document::Config;

    fn with(change: impl FnOnce(&mut Config)) -> Result<(), String> {
        let mut config = Config::default();
        change(&mut config);
        check(&config.mqtt_sn, &config.listeners.mqtt_sn, config.auth.allow_anonymous)
            .map_err(|Usage(text)| text)
    }

    #[test]
    fn off_loopback_its_clients_are_somebody() {
        let open: SocketAddr = "192.0.2.1:1884".parse().unwrap();
        let listens = |c: &mut Config| c.listeners.mqtt_sn = vec![open];
        assert!(with(listens).unwrap_err().contains("mqtt_sn = 192.0.2.1:1884"));
        with(|c| {
            listens(c);
            c.mqtt_sn.user = "meters".into();
        })
        .unwrap();
        with(|c| {
            listens(c);
            c.auth.allow_anonymous = Anonymous::Always;
        })
        .unwrap();
        assert!(with(|c| c.mqtt_sn.user = "platform:ann".into()).unwrap_err().contains("platform"));
    }

    #[test]
    fn predefined_topics_are_topics() {
        let predefined = |list: &[(u16, &str)]| {
            let one = |(id, topic): &(u16, &str)| Predefined { id: *id, topic: (*topic).into() };
            let list = list.iter().map(one).collect();
            with(|c| c.mqtt_sn.predefined = list)
        };
        predefined(&[(1, "a"), (2, "a")]).unwrap();
        assert!(predefined(&[(0, "a")]).unwrap_err().contains("id = 0"));
        assert!(predefined(&[(1, "a/+")]).unwrap_err().contains("a/+"));
        assert!(predefined(&[(1, "a"), (1, "b")]).unwrap_err().contains("twice"));
    }
}
