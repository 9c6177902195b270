//! A client that publishes to one topic, a message at a time: for programs that time it.

use bytes::Bytes;
use fulmar_client::Trust;
use fulmar_coap::{Call, Method};

use super::wire::Wire;
use super::{TrustArgs, Url, check};

/// A socket, and over DTLS an open session.
pub struct Speaker {
    wire: Wire,
    topic: String,
    path: Vec<String>,
}

impl Speaker {
    /// Gets ready to publish to `topic`, as nobody in particular.
    ///
    /// # Errors
    /// Usage errors, or no DTLS session with a trusted server.
    pub async fn open(url: &str, topic: &str, trust: Trust) -> anyhow::Result<Speaker> {
        let url = Url::parse(url)?;
        let path = url.path(topic)?;
        let given = TrustArgs { username: None, key: None, certificate: None, trust };
        let wire = Wire::open(&url, &given).await?;
        Ok(Speaker { wire, topic: topic.to_owned(), path })
    }

    /// Publishes a message and waits for the answer.
    ///
    /// # Errors
    /// None came, or it was an error.
    pub async fn publish(&mut self, payload: Bytes) -> anyhow::Result<()> {
        let call = Call { payload, ..Call::new(Method::Post, self.path.clone()) };
        check(&self.topic, &self.wire.request(call).await?)
    }

    /// Ends the DTLS session, if there is one.
    pub async fn close(self) {
        self.wire.close().await;
    }
}
