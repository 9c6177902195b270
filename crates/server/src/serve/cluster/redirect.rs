//! `[cluster] standby = "redirect"`: a node that stands by answers MQTT clients with the address of the node that serves
//! (MQTT 5.0 section 4.11), with the bounds and timeouts for strangers that a server's listeners have.
//!
//! Its listeners are those of a server, with a broker that accepts nobody. They end before the server begins, which
//! binds the same ports.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use fulmar_broker::auth::AccessControl;
use fulmar_broker::storage::{NoStorage, Restored};
use fulmar_broker::{Broker, BrokerConfig, Redirect, TransportKind};
use fulmar_transport::Clock;
use parking_lot::Mutex;

use crate::serve::{listeners, secrets};
use fulmar_config::{Config, Listeners};
use fulmar_part::certificates::Certificates;

/// Answers are small and need no storage; only TLS handshakes cost more.
const WORKERS: usize = 1;

/// Where clients of the node that serves reach it: URLs, one per transport.
#[derive(Debug, Default)]
pub(super) struct Target(Mutex<Vec<String>>);

impl Target {
    /// Names another node; an empty list for none.
    pub(super) fn set(&self, addresses: &[String]) {
        let mut current = self.0.lock();
        if *current != addresses {
            addresses.clone_into(&mut current);
        }
    }
}

impl Redirect for Target {
    fn reference(&self, transport: TransportKind) -> Option<Box<str>> {
        let addresses = self.0.lock();
        let mut urls = addresses.iter().filter_map(|url| url.split_once("://"));
        urls.find(|(scheme, _)| *scheme == listener_of(transport)).map(|(_, at)| at.into())
    }
}

/// The listener of a transport, which is also the scheme of its URLs.
fn listener_of(transport: TransportKind) -> &'static str {
    match transport {
        TransportKind::Tcp => "mqtt",
        TransportKind::Tls => "mqtts",
        kind => kind.name(),
    }
}

/// The listeners.
pub(super) struct Redirecting {
    running: listeners::Running,
    certificates: Certificates,
}

impl Redirecting {
    /// Binds the listeners, and notes in the configuration which ports the system has chosen, so that the server gets
    /// the same.
    pub(super) fn start(
        config: &mut Config,
        data: &Path,
        target: Arc<Target>,
    ) -> anyhow::Result<Redirecting> {
        let clock = Clock::start();
        let broker_config = BrokerConfig {
            workers: WORKERS,
            limits: config.limits.broker(&config.storage, config.memory(), WORKERS),
            access_control: AccessControl::default(),
            sys_interval_s: 0,
            client_statistics: config.sys.clients,
            internal_sessions: Vec::new(),
        };
        let broker =
            Broker::new(broker_config, Arc::new(NoStorage), Restored::default(), clock.now());
        broker.set_redirect(target);
        let certificates = Certificates::open(config, data, crate::serve::ORDERED)?;
        let quic = config.quic_settings(secrets::quic_keys(data)?);
        let running = listeners::start(&broker, WORKERS, config, &certificates, &quic, clock)?;
        keep_ports(&mut config.listeners, &running.mqtt());
        Ok(Redirecting { running, certificates })
    }

    /// Every listener with its address.
    pub(super) fn bound(&self) -> Vec<(&'static str, SocketAddr)> {
        self.running.mqtt()
    }

    /// Reads the certificate again.
    pub(super) fn reload(&self, config: &Config) {
        match self.certificates.reload(config) {
            Ok(_) => tracing::info!("certificates and client CAs reloaded"),
            Err(error) => tracing::error!("reload failed, nothing changed: {error:#}"),
        }
    }
}

fn keep_ports(listeners: &mut Listeners, bound: &[(&'static str, SocketAddr)]) {
    for (name, addresses) in listeners.redirecting_mut() {
        let of = bound.iter().filter(|(listener, _)| *listener == name);
        *addresses = of.map(|(_, address)| *address).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_has_its_own_address() {
        let target = Target::default();
        assert_eq!(target.reference(TransportKind::Tcp), None);
        target.set(&["mqtt://a:1", "mqtts://a:2", "quic://[::1]:3"].map(str::to_owned));
        for (transport, reference) in [
            (TransportKind::Tcp, Some("a:1")),
            (TransportKind::Tls, Some("a:2")),
            (TransportKind::Quic, Some("[::1]:3")),
            (TransportKind::Ws, None),
        ] {
            assert_eq!(target.reference(transport).as_deref(), reference);
        }
        target.set(&[]);
        assert_eq!(target.reference(TransportKind::Tcp), None);
    }
}
