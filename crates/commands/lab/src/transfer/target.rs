//! The target of a transfer and how it is verified: addresses, the TLS configuration with its tickets, and the route
//! whose change ends a TCP connection.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use fulmar_client::Options;
use http::Uri;
use http::uri::{PathAndQuery, Scheme};
use rustls::ClientConfig;
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Resumption, Tls12ClientSessionValue,
    Tls13ClientSessionValue,
};
use rustls::pki_types::ServerName;
use tokio::sync::watch;

use super::Args;
use crate::exit::Usage;

/// Interval at which a route is checked.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The most sessions stored: those of one server.
const SESSIONS: usize = 8;

/// A server and an object there.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) url: Uri,
    pub(super) address: SocketAddr,
    /// `None` for plain HTTP.
    pub(super) tls: Option<(ClientConfig, ServerName<'static>)>,
}

impl Target {
    pub(super) async fn new(args: &Args) -> anyhow::Result<Target> {
        let usage = |why: &str| Usage(format!("{}: {why}", args.url));
        let url: Uri = args.url.parse().map_err(|_| usage("not a URL"))?;
        let secure = url.scheme() == Some(&Scheme::HTTPS);
        if !secure && (url.scheme() != Some(&Scheme::HTTP) || args.http != super::Version::Http1) {
            return Err(usage("use https://, or http:// with --http 1.1").into());
        }
        let written = url.host().ok_or_else(|| usage("the host is missing"))?;
        let host = written.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let mut found =
            tokio::net::lookup_host((host.clone(), port)).await.with_context(|| host.clone())?;
        let address = found.next().with_context(|| format!("{host} has no address"))?;
        let tls = if secure {
            // The client library decides which certificates to trust; MQTT is not used.
            let mut options = Options::new(&format!("mqtts://{written}"))?;
            options.trust = args.tls.trust();
            options.key_log = args.tls.key_log.file(address.ip().is_loopback())?;
            let name = ServerName::try_from(host)?;
            Some((options.tls_config()?, name))
        } else {
            None
        };
        Ok(Target { url, address, tls })
    }

    /// Another object of the same server.
    pub(super) fn with_path(&self, path: &str) -> anyhow::Result<Uri> {
        let mut parts = self.url.clone().into_parts();
        let wrong = |_| Usage(format!("{path}: not a path"));
        parts.path_and_query = Some(path.parse::<PathAndQuery>().map_err(wrong)?);
        Ok(Uri::from_parts(parts)?)
    }
}

/// The tickets of a client, and a notification of new ones.
#[derive(Debug)]
pub(super) struct Tickets {
    kept: Option<ClientSessionMemoryCache>,
    fresh: watch::Sender<bool>,
}

impl Tickets {
    /// Installs a store of tickets in a TLS configuration; without `remember`, the store stays empty.
    pub(super) fn install(tls: &mut ClientConfig, remember: bool) -> Arc<Tickets> {
        let kept = remember.then(|| ClientSessionMemoryCache::new(SESSIONS));
        let tickets = Arc::new(Tickets { kept, fresh: watch::Sender::new(false) });
        tls.resumption = Resumption::store(Arc::clone(&tickets) as Arc<dyn ClientSessionStore>);
        tickets
    }

    /// For a client without TLS.
    pub(super) fn none() -> Arc<Tickets> {
        Arc::new(Tickets { kept: None, fresh: watch::Sender::new(false) })
    }

    /// Waits for the next ticket.
    pub(super) async fn arrived(&self) {
        let mut fresh = self.fresh.subscribe();
        // The sender still exists.
        drop(fresh.wait_for(|fresh| *fresh).await);
        self.fresh.send_replace(false);
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server: ServerName<'static>, group: rustls::NamedGroup) {
        if let Some(kept) = &self.kept {
            kept.set_kx_hint(server, group);
        }
    }

    fn kx_hint(&self, server: &ServerName<'_>) -> Option<rustls::NamedGroup> {
        self.kept.as_ref()?.kx_hint(server)
    }

    fn set_tls12_session(&self, server: ServerName<'static>, value: Tls12ClientSessionValue) {
        if let Some(kept) = &self.kept {
            kept.set_tls12_session(server, value);
            self.fresh.send_replace(true);
        }
    }

    fn tls12_session(&self, server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.kept.as_ref()?.tls12_session(server)
    }

    fn remove_tls12_session(&self, server: &ServerName<'static>) {
        if let Some(kept) = &self.kept {
            kept.remove_tls12_session(server);
        }
    }

    fn insert_tls13_ticket(&self, server: ServerName<'static>, value: Tls13ClientSessionValue) {
        if let Some(kept) = &self.kept {
            kept.insert_tls13_ticket(server, value);
            self.fresh.send_replace(true);
        }
    }

    fn take_tls13_ticket(&self, server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.kept.as_ref()?.take_tls13_ticket(server)
    }
}

/// The address that this machine uses towards a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) local: IpAddr,
    pub(super) remote: SocketAddr,
}

impl Route {
    pub(super) fn to(remote: SocketAddr) -> std::io::Result<Route> {
        Ok(Route { local: source(remote)?, remote })
    }

    /// Returns when the kernel would use another address now.
    pub(super) async fn changed(self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // Without a route there is no other address; the next check may find one.
            if source(self.remote).is_ok_and(|source| source != self.local) {
                return;
            }
        }
    }
}

/// The address from which the kernel would send. Connecting a UDP socket sends nothing.
fn source(remote: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}
