//! Objects over HTTP/1.1 without TLS: those of `fulmar serve`, on a port of their own.

use std::net::SocketAddr;

use anyhow::Context;

/// Serves them until the process ends.
pub(super) fn serve(at: SocketAddr) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(at).await;
        let listener = listener.with_context(|| at.to_string())?;
        println!("ready http={}", listener.local_addr()?);
        Ok(axum::serve(listener, fulmar_http::objects::router()).await?)
    })
}
