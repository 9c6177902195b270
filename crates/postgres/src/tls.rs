//! TLS to the server: its certificate must be good for its name, and passwords are bound to it (RFC 5929 section 4),
//! so that nobody on the path can use them.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Connection;
use x509_parser::oid_registry as oid;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// TLS for connections, with the CAs of this PEM file or else the system's.
pub(crate) fn connector(ca_file: Option<&Path>) -> Result<Tls, String> {
    let roots =
        fulmar_certs::trust::roots(ca_file, false).map_err(|error| format!("CAs: {error}"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let config = config.with_root_certificates(roots).with_no_client_auth();
    Ok(Tls(Arc::new(config)))
}

/// Makes connections TLS.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = Secured<S>;
    type TlsConnect = ToServer;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<ToServer, Infallible> {
        Ok(ToServer { name: host.to_owned(), config: Arc::clone(&self.0) })
    }
}

/// One connection to be made TLS.
pub(crate) struct ToServer {
    name: String,
    config: Arc<ClientConfig>,
}

impl<S> TlsConnect<S> for ToServer
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Stream = Secured<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Secured<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.name)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            TlsConnector::from(self.config).connect(name, stream).await.map(Secured)
        })
    }
}

/// A connection that is TLS.
pub(crate) struct Secured<S>(Connection<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Secured<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let first = session.peer_certificates().and_then(|certificates| certificates.first());
        let end_point = first.and_then(|der| Some(digest(digest_of(der)?, der).as_ref().to_vec()));
        end_point.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

/// The hash in a certificate's signature, with SHA-256 in MD5's and SHA-1's place (RFC 5929 section 4.1). `None` where
/// the algorithm of the signature names no hash, as Ed25519's.
fn digest_of(certificate: &[u8]) -> Option<&'static Algorithm> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let signed = &certificate.signature_algorithm.algorithm;
    let table = [
        (oid::OID_PKCS1_MD5WITHRSAENC, &SHA256),
        (oid::OID_PKCS1_SHA1WITHRSA, &SHA256),
        (oid::OID_PKCS1_SHA256WITHRSA, &SHA256),
        (oid::OID_PKCS1_SHA384WITHRSA, &SHA384),
        (oid::OID_PKCS1_SHA512WITHRSA, &SHA512),
        (oid::OID_SIG_ECDSA_WITH_SHA256, &SHA256),
        (oid::OID_SIG_ECDSA_WITH_SHA384, &SHA384),
        (oid::OID_SIG_ECDSA_WITH_SHA512, &SHA512),
    ];
    table.into_iter().find_map(|(algorithm, hash)| (algorithm == *signed).then_some(hash))
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
