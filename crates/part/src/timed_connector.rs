//! Limits the time to connect, TLS handshake included.
//!
//! A request's own limit is not enough: if another connection becomes free while one is being opened for a request,
//! hyper-util's client uses the free one, and goes on connecting in the background, where neither `HttpConnector` nor the
//! handshake has a limit. A server that accepts connections and is silent would collect them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use tower_service::Service;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Connects within this time, or gives up.
#[derive(Clone, Debug)]
pub struct TimedConnector<C> {
    connector: C,
    limit: Duration,
}

impl<C> TimedConnector<C> {
    /// Limits the time of each connection.
    pub fn new(connector: C, limit: Duration) -> TimedConnector<C> {
        TimedConnector { connector, limit }
    }
}

impl<C> Service<Uri> for TimedConnector<C>
where
    C: Service<Uri>,
    C::Error: Into<Error>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (connecting, limit) = (self.connector.call(uri), self.limit);
        Box::pin(async move {
            match tokio::time::timeout(limit, connecting).await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(format!("no connection within {limit:?}").into()),
            }
        })
    }
}
