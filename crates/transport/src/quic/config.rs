//! QUIC's settings, and those passed to quinn-proto.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fulmar_congestion::Congestion;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::{
    BloomTokenLog, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TokenLog,
    TransportConfig, ValidationTokenConfig, VarInt,
};
use ring::{hkdf, hmac};
use serde::{Deserialize, Serialize};

use super::extended_tls::ExtendedTls;
use super::losses::Losses;
use super::server_id::ServerId;
use super::steering::{FirstCid, WorkerCids};
use crate::tls::{ServerTls, TlsError};

/// Streams that a client may open before its first data stream shows that it uses several. quinn allocates at least
/// 34 bytes for each stream that a client might open, mostly without use: 4 KiB per connection at 64 streams, half a
/// KiB with this number.
const FIRST_STREAMS: u32 = 8;

/// Unread bytes buffered on one connection before its client is accepted: enough for CONNECT and much early data, and
/// clients that are not authenticated cannot fill the memory.
pub(super) const FIRST_WINDOW_BYTES: u32 = 64 * 1024;

/// The shortest interval between two stateless resets of one worker. After a restart, they notify clients that their
/// connections are gone: each client sends once per keep-alive interval, and a client that gets no reset waits for
/// its idle timeout. A reset is smaller than the packet it answers.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// Lifetime of an address token (RFC 9000 section 8.1.3).
const TOKEN_LIFETIME: Duration = Duration::from_secs(14 * 24 * 3600);

/// Unidirectional streams likewise: with these, quinn's table of the streams it may read is no larger.
const FIRST_UNI_STREAMS: u32 = 4;

/// The longest silence that a Keep Alive allows, 1.5 times 65,535 s ([MQTT-3.1.2-22]), and a minute.
const LONGEST_SILENCE: Duration = Duration::from_secs(98_303 + 60);

/// Whether clients must prove their address before the server does work for them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RetryPolicy {
    /// While many handshakes are in progress.
    #[default]
    Auto,
    /// Always; costs every new client a round trip.
    Always,
    /// Never.
    Never,
}

/// Secrets that should outlive the process: with them, clients accept a restarted server's stateless resets, and its
/// address tokens remain valid.
#[derive(Clone)]
pub struct QuicKeys(pub [u8; 64]);

fulmar_text::opaque_debug!(QuicKeys);

/// QUIC's settings.
#[derive(Clone, Debug)]
pub struct QuicSettings {
    /// Time without a packet after which a connection is gone whose client has no Keep Alive or has
    /// not said CONNECT. With a Keep Alive the client may be silent as long as that says.
    pub idle_timeout: Duration,
    /// Time for the handshake and the control stream's first bytes.
    pub handshake_timeout: Duration,
    /// Streams of each kind, bidirectional and unidirectional, that a client may have open at once.
    pub max_streams: u32,
    /// Unread bytes a client may send on one stream.
    pub stream_window_bytes: u32,
    /// Unread bytes a client may send on one connection.
    pub connection_window_bytes: u32,
    /// Least number of bytes in flight that are allowed whatever the congestion window.
    pub min_send_window_bytes: u64,
    /// Address validation.
    pub retry: RetryPolicy,
    /// Handshakes in progress on one worker above which [`RetryPolicy::Auto`] demands it.
    pub retry_above: usize,
    /// Handshakes in progress on one worker above which new ones are ignored.
    pub max_handshakes: usize,
    /// Whether early data (0-RTT) is accepted.
    pub early_data: bool,
    /// Congestion control towards clients.
    pub congestion: Congestion,
    /// Whether small datagrams to clients with little to receive are sent again where packets are lost
    /// (`fulmar_congestion::copies`).
    pub copies: bool,
    /// Losses of the networks of clients, for all listeners and workers with these settings.
    pub losses: Losses,
    /// Whether larger datagrams than 1200 bytes are tried. They save a sixth of the datagrams to a
    /// client that gets much, and cost every connection eight at its beginning, 6 KB each way.
    pub mtu_discovery: bool,
    /// Folder for qlog files, one a connection, at most 1000 an endpoint; `None` for none.
    pub qlog_dir: Option<PathBuf>,
    /// Secrets.
    pub keys: QuicKeys,
    /// The node of a cluster that connection IDs name.
    pub server_id: Option<ServerId>,
}

impl QuicSettings {
    /// Defaults with these secrets.
    pub fn new(keys: QuicKeys) -> QuicSettings {
        QuicSettings {
            idle_timeout: Duration::from_secs(30),
            handshake_timeout: Duration::from_secs(10),
            max_streams: 64,
            stream_window_bytes: 256 * 1024,
            connection_window_bytes: 1024 * 1024,
            min_send_window_bytes: 32 * 1024,
            retry: RetryPolicy::Auto,
            retry_above: 200,
            max_handshakes: 4000,
            early_data: true,
            congestion: Congestion::default(),
            copies: true,
            losses: Losses::default(),
            mtu_discovery: false,
            qlog_dir: None,
            keys,
            server_id: None,
        }
    }

    pub(super) fn endpoint(&self, index: usize, workers: usize, first: FirstCid) -> EndpointConfig {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.keys.0[..32]);
        let mut config = EndpointConfig::new(Arc::new(key));
        let server_id = self.server_id;
        config
            .cid_generator(move || {
                Box::new(WorkerCids::new(index, workers, server_id, first.clone()))
            })
            .min_reset_interval(RESET_INTERVAL);
        config
    }

    pub(super) fn server(&self, tls: &ServerTls) -> Result<ServerConfig, TlsError> {
        let mut rustls = (*tls.quic).clone();
        if !self.early_data {
            rustls.max_early_data_size = 0;
        }
        let crypto = QuicServerConfig::try_from(Arc::new(rustls))?;
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.keys.0[32..]);
        let crypto = Arc::new(ExtendedTls::new(crypto));
        let mut config = ServerConfig::new(crypto, Arc::new(token_key));
        config.transport_config(Arc::new(self.transport()));
        config.migration(true);
        // A client has one connection here, and each brings a new one.
        let mut tokens = ValidationTokenConfig::default();
        tokens.sent(1).lifetime(TOKEN_LIFETIME).log(Arc::new(token_log(SystemTime::now())));
        config.validation_token_config(tokens);
        Ok(config)
    }

    /// Also for one connection with a qlog of its own.
    pub(super) fn transport(&self) -> TransportConfig {
        let mut config = TransportConfig::default();
        // Which timeout holds is known only after CONNECT (`silence.rs`).
        let idle = IdleTimeout::try_from(self.idle_timeout.max(LONGEST_SILENCE)).ok();
        config
            .max_idle_timeout(idle)
            .max_concurrent_bidi_streams(VarInt::from_u32(self.max_streams.clamp(1, FIRST_STREAMS)))
            .max_concurrent_uni_streams(VarInt::from_u32(
                self.max_streams.clamp(1, FIRST_UNI_STREAMS),
            ))
            .stream_receive_window(VarInt::from_u32(self.stream_window_bytes))
            .receive_window(VarInt::from_u32(self.connection_window_bytes.min(FIRST_WINDOW_BYTES)))
            .send_window(self.min_send_window_bytes)
            .datagram_receive_buffer_size(None)
            .mtu_discovery_config(self.mtu_discovery.then(MtuDiscoveryConfig::default))
            .congestion_controller_factory(self.congestion.factory())
            .allow_spin(true);
        config
    }
}

/// Address tokens that have been used. quinn-proto's log begins with the first token that it sees and refuses all
/// that expire sooner, with a warning for each: after a restart, most of the clients' tokens. A token that expires at
/// `now` makes the log begin there.
fn token_log(now: SystemTime) -> BloomTokenLog {
    let log = BloomTokenLog::default();
    // No client's nonce: those are 128 random bits.
    let _ = log.check_and_insert(0, now - TOKEN_LIFETIME, TOKEN_LIFETIME);
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_before_the_start_are_taken_once_in_any_order() {
        let now = SystemTime::now();
        let log = token_log(now);
        let days = |days: u64| now - Duration::from_secs(days * 24 * 3600);
        for (nonce, issued) in [(1, days(1)), (2, days(13)), (3, days(5)), (4, now)] {
            assert!(log.check_and_insert(nonce, issued, TOKEN_LIFETIME).is_ok(), "{nonce}");
            assert!(log.check_and_insert(nonce, issued, TOKEN_LIFETIME).is_err(), "{nonce}");
        }
    }
}
