//! TCP or QUIC for `fulmar lab copy` and `fulmar lab lines`: the options, a connection, a listener.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use fulmar_certs::authority::Authority;
use fulmar_certs::files::{read_chain, read_key};
use fulmar_certs::trust::roots_of;
use fulmar_client::CopyingEndpoint;
use quinn::AckFrequencyConfig;
use quinn::congestion::{BbrConfig, ControllerFactory, CubicConfig};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use socket2::SockRef;

/// Bytes that may be unacknowledged over QUIC: 100 Mbit/s for a round trip of two seconds. TCP's windows grow by
/// themselves.
const WINDOW_BYTES: u32 = 32 << 20;
/// The sender of a live stream asks for acknowledgements within this time; the default is 25 ms.
const ACK_DELAY: Duration = Duration::from_millis(5);
const PROTOCOL: &[u8] = b"fulmar-copy";
/// A receiver that has everything ends after this much silence. Between two probes of a sender that still waits for an
/// acknowledgement, less time passes as long as one of seven in a row arrives.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// Where a sender connects to, and how.
#[derive(clap::Args, Debug)]
pub(super) struct To {
    /// Address to connect to
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// Transport
    #[arg(long, value_enum)]
    pub(super) over: Over,
    /// Congestion control of the sender
    #[arg(long, value_enum, default_value_t = Congestion::Cubic)]
    congestion: Congestion,
    /// Folder of the development CA that both ends share, for QUIC
    #[arg(long, value_name = "DIR", default_value = "ca")]
    ca: PathBuf,
}

/// Where a receiver listens, and for what.
#[derive(clap::Args, Debug)]
pub(super) struct At {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS:PORT")]
    at: SocketAddr,
    /// Transport
    #[arg(long, value_enum)]
    pub(super) over: Over,
    /// Folder of the development CA that both ends share, for QUIC
    #[arg(long, value_name = "DIR", default_value = "ca")]
    ca: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Over {
    Tcp,
    Quic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Congestion {
    Cubic,
    Bbr,
    // Fulmar's, over QUIC only.
    Adaptive,
}

impl To {
    pub(super) fn tcp(&self) -> anyhow::Result<TcpStream> {
        let stream = TcpStream::connect(self.to).with_context(|| self.to.to_string())?;
        let name = match self.congestion {
            Congestion::Cubic => "cubic",
            Congestion::Bbr => "bbr",
            Congestion::Adaptive => bail!("--congestion adaptive is for --over quic"),
        };
        let set = SockRef::from(&stream).set_tcp_congestion(name.as_bytes());
        set.with_context(|| format!("this system has no TCP {name}"))?;
        Ok(stream)
    }

    /// A connection to an address with a certificate of this machine's development CA. For a live stream, and with the
    /// adaptive control, small datagrams are sent again where packets are lost.
    pub(super) async fn quic(
        &self,
        is_live: bool,
    ) -> anyhow::Result<(quinn::Endpoint, quinn::Connection)> {
        let roots = roots_of(&Authority::open(&self.ca)?.certificate_path())?;
        let mut tls =
            rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
        let any: SocketAddr =
            if self.to.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
        let copying = CopyingEndpoint::new(any)?;
        let mut transport = transport(self.congestion);
        if is_live {
            // Otherwise only every second message has one, and a loss is found later if that is lost.
            let mut frequency = AckFrequencyConfig::default();
            frequency.max_ack_delay(Some(ACK_DELAY)).reordering_threshold(1_u32.into());
            transport.ack_frequency_config(Some(frequency));
        }
        if is_live || self.congestion == Congestion::Adaptive {
            transport.congestion_controller_factory(copying.watched(self.congestion.factory()));
        }
        config.transport_config(Arc::new(transport));
        let name = self.to.ip().to_string();
        let connection = copying.endpoint.connect_with(config, self.to, &name)?.await?;
        Ok((copying.endpoint, connection))
    }
}

impl At {
    pub(super) fn tcp(&self) -> anyhow::Result<TcpListener> {
        TcpListener::bind(self.at).with_context(|| self.at.to_string())
    }

    /// An endpoint with a certificate of this machine's development CA.
    pub(super) fn quic(&self) -> anyhow::Result<quinn::Endpoint> {
        let names = [self.at.ip().to_string()];
        let (chain, key) = Authority::open(&self.ca)?.server_files(&names)?;
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(read_chain(&chain)?, read_key(&key)?)?;
        tls.alpn_protocols = vec![PROTOCOL.to_vec()];
        let mut config =
            quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
        config.transport_config(Arc::new(transport(Congestion::Cubic)));
        quinn::Endpoint::server(config, self.at).with_context(|| self.at.to_string())
    }
}

pub(super) async fn accept(endpoint: &quinn::Endpoint) -> anyhow::Result<quinn::Connection> {
    let Some(incoming) = endpoint.accept().await else { bail!("the endpoint is closed") };
    Ok(incoming.await?)
}

/// Waits until the sender closes the connection or is silent for so long. It announces its close in a single packet
/// (RFC 9000 section 10.2), which can be lost; without an idle timeout, nothing else would end the connection.
pub(super) async fn ended(connection: &quinn::Connection, silence: Duration) {
    let arrived = || connection.stats().udp_rx.datagrams;
    let mut before = arrived();
    while tokio::time::timeout(silence, connection.closed()).await.is_err() {
        if std::mem::replace(&mut before, arrived()) == before {
            connection.close(0_u32.into(), b"");
            return;
        }
    }
}

impl Congestion {
    fn factory(self) -> Arc<dyn ControllerFactory + Send + Sync> {
        match self {
            Congestion::Cubic => Arc::new(CubicConfig::default()),
            Congestion::Bbr => Arc::new(BbrConfig::default()),
            Congestion::Adaptive => fulmar_client::Congestion::Adaptive.factory(),
        }
    }
}

fn transport(congestion: Congestion) -> quinn::TransportConfig {
    let mut config = quinn::TransportConfig::default();
    config
        .congestion_controller_factory(congestion.factory())
        .stream_receive_window(WINDOW_BYTES.into())
        .receive_window(WINDOW_BYTES.into())
        .send_window(WINDOW_BYTES.into())
        // The experiment decides how long is too long.
        .max_idle_timeout(None);
    config
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A sender whose close is lost looks like this one, which never closes.
    #[tokio::test]
    async fn a_receiver_does_not_wait_for_a_lost_close() {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().to_owned();
        let loopback = ([127, 0, 0, 1], 0).into();
        let at = At { at: loopback, over: Over::Quic, ca: ca.clone() };
        let endpoint = at.quic().unwrap();
        let to = endpoint.local_addr().unwrap();
        let to = To { to, over: Over::Quic, congestion: Congestion::Cubic, ca };
        let (receiver, sender) = tokio::join!(accept(&endpoint), to.quic(false));
        let (receiver, _sender) = (receiver.unwrap(), sender.unwrap());
        let ended = ended(&receiver, Duration::from_millis(100));
        tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap();
    }
}
