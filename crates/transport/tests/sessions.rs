//! Resuming TLS sessions with early data: over restarts, once, and only under the demands on
//! clients that the session was made under. rustls as the client, in memory, without sockets.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use fulmar_certs::authority::{Authority, Purpose};
use fulmar_certs::files;
use fulmar_transport::tickets::Tickets;
use fulmar_transport::tls::{ClientAuth, Identity, RootCertStore, ServerTls};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, ServerConfig, ServerConnection};
use tempfile::TempDir;

struct Site {
    dir: TempDir,
    identity: Arc<Identity>,
    root: CertificateDer<'static>,
    user: (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>),
}

impl Site {
    fn new() -> Site {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(&dir.path().join("ca")).unwrap();
        let (chain, key) = authority.server_files(&["localhost".to_owned()]).unwrap();
        let chain = files::read_chain(&chain).unwrap();
        let root = chain[1].clone();
        let identity = Identity::new(chain, files::read_key(&key).unwrap()).unwrap();
        let issued = authority.issue("meter-7", &[], Purpose::Client, 1).unwrap();
        let (chain, key) = (dir.path().join("user.pem"), dir.path().join("user.key"));
        files::write(&chain, issued.chain_pem.as_bytes(), false).unwrap();
        files::write(&key, issued.key_pem.as_bytes(), true).unwrap();
        let user = (files::read_chain(&chain).unwrap(), files::read_key(&key).unwrap());
        Site { dir, identity, root, user }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).unwrap();
        roots
    }

    fn tls(&self, auth: ClientAuth, tickets: &Arc<Tickets>) -> ServerTls {
        let roots = if auth == ClientAuth::Off { RootCertStore::empty() } else { self.roots() };
        ServerTls::with_tickets(&self.identity, auth, roots, tickets).unwrap()
    }

    fn open(&self) -> Arc<Tickets> {
        Tickets::open(&self.dir.path().join("tickets.db")).unwrap()
    }

    /// The data folder as it is now, as a process finds it that starts after a kill.
    fn copy(&self) -> TempDir {
        let copy = tempfile::tempdir().unwrap();
        for name in ["tickets.db", "tickets.db-wal", "tickets.db.lock"] {
            std::fs::copy(self.dir.path().join(name), copy.path().join(name)).unwrap();
        }
        copy
    }

    fn client(&self, certificate: bool) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        let mut config = if certificate {
            let (chain, key) = &self.user;
            builder.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![b"mqtt".to_vec()];
        config.enable_early_data = true;
        Arc::new(config)
    }
}

fn in_folder(folder: &Path) -> Arc<Tickets> {
    Tickets::open(&folder.join("tickets.db")).unwrap()
}

fn dial(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

fn flight(client: &mut ClientConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// The first flight of a returning client with early data in it.
fn early_flight(config: &Arc<ClientConfig>) -> (ClientConnection, Vec<u8>) {
    let mut client = dial(config);
    client.early_data().expect("a ticket").write_all(b"early").unwrap();
    let bytes = flight(&mut client);
    (client, bytes)
}

/// Lets a server read a first flight; gives the early data it accepts.
fn hear(config: &Arc<ServerConfig>, mut flight: &[u8]) -> (ServerConnection, Vec<u8>) {
    let mut server = ServerConnection::new(Arc::clone(config)).unwrap();
    while !flight.is_empty() {
        server.read_tls(&mut flight).unwrap();
        server.process_new_packets().unwrap();
    }
    let mut early = Vec::new();
    if let Some(mut reader) = server.early_data() {
        let mut piece = [0; 64];
        while let Ok(n @ 1..) = reader.read(&mut piece) {
            early.extend_from_slice(&piece[..n]);
        }
    }
    (server, early)
}

/// Brings a handshake to its end, ticket included.
fn finish(client: &mut ClientConnection, server: &mut ServerConnection) -> HandshakeKind {
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            client.read_tls(&mut bytes).unwrap();
            client.process_new_packets().unwrap();
        }
        let bytes = flight(client);
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            server.process_new_packets().unwrap();
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    server.handshake_kind().unwrap()
}

fn connect(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> (HandshakeKind, bool) {
    let mut client = dial(client);
    let (mut server, _) = hear(server, &flight(&mut client));
    let kind = finish(&mut client, &mut server);
    (kind, server.peer_certificates().is_some())
}

#[test]
fn a_killed_server_takes_a_first_flight_again_once() {
    let site = Site::new();
    let client = site.client(false);
    let first = site.tls(ClientAuth::Off, &site.open());
    assert_eq!(connect(&client, &first.quic).0, HandshakeKind::Full);
    let killed = site.copy();
    let second = site.tls(ClientAuth::Off, &in_folder(killed.path()));
    let (mut returning, recorded) = early_flight(&client);
    let (mut server, early) = hear(&second.quic, &recorded);
    assert_eq!(early, b"early");
    assert_eq!(finish(&mut returning, &mut server), HandshakeKind::Resumed);
    assert_eq!(hear(&second.quic, &recorded).1, b"", "repeated at once");
}

#[test]
fn a_first_flight_is_not_taken_again_by_the_next_process() {
    let site = Site::new();
    let client = site.client(false);
    let tickets = site.open();
    let first = site.tls(ClientAuth::Off, &tickets);
    connect(&client, &first.quic);
    let before = site.copy();
    let (_, recorded) = early_flight(&client);
    assert_eq!(hear(&first.quic, &recorded).1, b"early");
    let after = site.copy();
    let again = |folder: &TempDir| {
        let next = site.tls(ClientAuth::Off, &in_folder(folder.path()));
        hear(&next.quic, &recorded).1
    };
    // The recording is good: a server that has not seen the ticket taken does take it.
    assert_eq!(again(&before), b"early");
    assert_eq!(again(&after), b"", "killed after it was taken");
    tickets.close().unwrap();
    let next = site.tls(ClientAuth::Off, &site.open());
    assert_eq!(hear(&next.quic, &recorded).1, b"", "stopped after it was taken");
}

#[test]
fn a_session_is_not_resumed_under_stricter_demands() {
    let site = Site::new();
    let client = site.client(true);
    let tickets = site.open();
    let open = site.tls(ClientAuth::Off, &tickets);
    connect(&client, &open.quic);
    let strict = site.tls(ClientAuth::Required, &tickets);
    assert_eq!(connect(&client, &strict.quic), (HandshakeKind::Full, true));
    assert_eq!(connect(&client, &strict.quic), (HandshakeKind::Resumed, true));
}

#[test]
fn new_client_authorities_end_the_old_ones_sessions() {
    let site = Site::new();
    let client = site.client(true);
    let tls = site.tls(ClientAuth::Required, &Tickets::in_memory().unwrap());
    for server in [&tls.quic, &tls.tcp] {
        connect(&client, server);
        assert_eq!(connect(&client, server).0, HandshakeKind::Resumed);
        let mut other = RootCertStore::empty();
        other.add(Site::new().root).unwrap();
        tls.replace_client_trust(other).unwrap();
        let mut caller = dial(&client);
        let mut asked = ServerConnection::new(Arc::clone(server)).unwrap();
        let mut error = None;
        for _ in 0..4 {
            let bytes = flight(&mut caller);
            asked.read_tls(&mut &bytes[..]).unwrap();
            error = error.or(asked.process_new_packets().err());
            let mut bytes = Vec::new();
            asked.write_tls(&mut bytes).unwrap();
            caller.read_tls(&mut &bytes[..]).unwrap();
            let _ = caller.process_new_packets();
        }
        assert!(matches!(error, Some(rustls::Error::InvalidCertificate(_))), "{error:?}");
        tls.replace_client_trust(site.roots()).unwrap();
        assert_eq!(connect(&site.client(true), server), (HandshakeKind::Full, true));
    }
}

#[test]
fn clients_with_an_unknown_protocol_name_are_served_over_tcp() {
    let site = Site::new();
    let tls = site.tls(ClientAuth::Off, &Tickets::in_memory().unwrap());
    let mut client = (*site.client(false)).clone();
    client.alpn_protocols = vec![b"x-amzn-mqtt-ca".to_vec()];
    assert_eq!(connect(&Arc::new(client), &tls.tcp).0, HandshakeKind::Full);
}
