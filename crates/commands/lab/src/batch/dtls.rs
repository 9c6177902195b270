//! A DTLS 1.2 session (RFC 6347) as a queue in and a queue out, over the crate dimpl, which has neither sockets nor
//! clock. Peers' certificates are accepted unverified, because this is for a lab's network.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use dimpl::{Config, Dtls, DtlsCertificate, Output};

use super::Files;
use crate::exit::Usage;

/// Room for the largest datagram.
const LARGEST: usize = 2048;

/// Certificate and settings.
#[derive(Clone)]
pub(super) struct Identity {
    certificate: DtlsCertificate,
    config: Arc<Config>,
}

/// Reads certificate and key.
pub(super) fn identity(files: &Files) -> anyhow::Result<Identity> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else {
        return Err(Usage("DTLS needs --cert and --key".to_owned()).into());
    };
    let certificate = fulmar_certs::files::read_chain(cert)?.swap_remove(0).to_vec();
    let private_key = fulmar_certs::files::read_key(key)?.secret_der().to_vec();
    let config = Config::builder().require_client_certificate(false).build();
    let config = Arc::new(config.context("DTLS")?);
    Ok(Identity { certificate: DtlsCertificate { certificate, private_key }, config })
}

/// One end of a session.
pub(super) struct DtlsSession {
    dtls: Dtls,
    connected: bool,
    outgoing: VecDeque<Vec<u8>>,
    received: VecDeque<Vec<u8>>,
    /// When its timer is due.
    due: Option<Instant>,
}

impl DtlsSession {
    pub(super) fn new(identity: &Identity, client: bool) -> anyhow::Result<DtlsSession> {
        let (certificate, config) = (identity.certificate.clone(), Arc::clone(&identity.config));
        let mut dtls = Dtls::new_12(config, certificate, Instant::now());
        dtls.set_active(client);
        let (outgoing, received) = (VecDeque::new(), VecDeque::new());
        let mut session = DtlsSession { dtls, connected: false, outgoing, received, due: None };
        session.dtls.handle_timeout(Instant::now()).context("DTLS")?;
        session.drain();
        Ok(session)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connected
    }

    /// Receives a datagram.
    pub(super) fn take(&mut self, datagram: &[u8]) -> anyhow::Result<()> {
        self.dtls.handle_packet(datagram).context("DTLS")?;
        self.drain();
        Ok(())
    }

    /// Handles the timer.
    pub(super) fn on_deadline(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        if self.due.is_some_and(|due| due <= now) {
            self.dtls.handle_timeout(now).context("DTLS")?;
            self.drain();
        }
        Ok(())
    }

    pub(super) fn send(&mut self, message: &[u8]) -> anyhow::Result<()> {
        self.dtls.send_application_data(message).context("DTLS")?;
        self.drain();
        Ok(())
    }

    /// The next datagram to be sent.
    pub(super) fn outgoing(&mut self) -> Option<Vec<u8>> {
        self.outgoing.pop_front()
    }

    /// The next message from the peer.
    pub(super) fn next(&mut self) -> Option<Vec<u8>> {
        self.received.pop_front()
    }

    pub(super) fn close(&mut self) {
        // A session that cannot even be closed is over anyway.
        drop(self.dtls.close());
        self.drain();
    }

    fn drain(&mut self) {
        let mut room = vec![0; LARGEST];
        loop {
            match self.dtls.poll_output(&mut room) {
                Output::Packet(packet) => self.outgoing.push_back(packet.to_vec()),
                Output::ApplicationData(data) => self.received.push_back(data.to_vec()),
                Output::Connected => self.connected = true,
                Output::BufferTooSmall { needed } => room.resize(needed, 0),
                Output::Timeout(due) => {
                    self.due = Some(due);
                    return;
                }
                _ => {}
            }
        }
    }
}
