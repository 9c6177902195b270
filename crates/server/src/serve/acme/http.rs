//! HTTPS requests to an ACME server (RFC 8555 section 6.1), bounded in time and size.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use fulmar_certs::files;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::crypto::ring::default_provider;
use rustls::{ClientConfig, RootCertStore};

/// Longest time from opening the connection to the response's last byte.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Largest response: directories and chains have a few kilobytes.
const MAX_BODY_BYTES: usize = 1024 * 1024;

type Pool = Client<HttpsConnector<HttpConnector>, BodyWrapper<Bytes>>;

/// A client that trusts the system's CAs, or those of a file.
pub(super) struct Https(Pool);

impl Https {
    /// # Errors
    /// The file of CAs cannot be used.
    pub(super) fn new(ca_file: Option<&Path>) -> anyhow::Result<Https> {
        let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots(ca_file)?)
            .with_no_client_auth();
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        Ok(Https(
            Client::builder(TokioExecutor::new())
                .build(builder.https_only().enable_http1().build()),
        ))
    }
}

fn roots(ca_file: Option<&Path>) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(file) = ca_file else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    for certificate in files::read_chain(file).context("[acme] ca_file")? {
        roots.add(certificate).with_context(|| format!("[acme] ca_file {}", file.display()))?;
    }
    Ok(roots)
}

impl HttpClient for Https {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let what = format!("{} {}", request.method(), request.uri());
        // Only the directory is read without a signature.
        let directory = request.method() == Method::GET;
        let answer = answer(self.0.clone(), request, directory);
        Box::pin(async move {
            let timed = tokio::time::timeout(TIMEOUT, answer).await;
            let answer = timed.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer in {TIMEOUT:?}")));
            let answer = answer.with_context(|| what);
            answer.map(BytesResponse::from).map_err(|error| Error::Other(error.into()))
        })
    }
}

async fn answer(
    pool: Pool,
    request: Request<BodyWrapper<Bytes>>,
    directory: bool,
) -> anyhow::Result<Response<Full<Bytes>>> {
    let (head, body) = pool.request(request).await?.into_parts();
    if directory && !head.status.is_success() {
        anyhow::bail!("answered {}: not an ACME directory", head.status);
    }
    let body =
        Limited::new(body, MAX_BODY_BYTES).collect().await.map_err(anyhow::Error::from_boxed)?;
    Ok(Response::from_parts(head, Full::new(body.to_bytes())))
}
