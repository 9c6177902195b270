//! Publishes readings at QoS 1, in order, with a limited number in flight.

use std::collections::VecDeque;

use anyhow::bail;
use fulmar_client::{Client, Delivery, Error, Event, Events, Message, Options};
use fulmar_sensors::Reading;

use fulmar_command_pubsub::explain;

/// Messages that may be in flight before the next one waits.
const WINDOW: usize = 256;

/// Publishes readings below a topic.
pub(super) struct Publisher<T> {
    client: Client,
    topic: String,
    pending: VecDeque<(Delivery, Reading, T)>,
    delivered: u64,
    refused: u64,
}

impl<T> Publisher<T> {
    /// Connects; what happens to the connection is for [`watch`].
    pub(super) fn new(options: Options, topic: &str) -> anyhow::Result<(Publisher<T>, Events)> {
        let (client, events) = Client::connect(options).map_err(explain)?;
        let topic = topic.trim_end_matches('/').to_owned();
        let publisher =
            Publisher { client, topic, pending: VecDeque::new(), delivered: 0, refused: 0 };
        Ok((publisher, events))
    }

    /// Sends a reading; `about` is returned with it when the broker has acknowledged it. Waits while too many are in
    /// flight, so also during a lost connection.
    pub(super) async fn send(
        &mut self,
        reading: Reading,
        about: T,
    ) -> anyhow::Result<Option<(Reading, T)>> {
        let topic = format!("{}/{}/{}", self.topic, reading.device, reading.quantity);
        let message = Message::new(topic, reading.payload().to_string()).qos1();
        let delivery = self.client.publish(message).await.map_err(explain)?;
        self.pending.push_back((delivery, reading, about));
        if self.pending.len() < WINDOW { Ok(None) } else { self.next().await }
    }

    /// Waits for the oldest reading's result; returns the reading if the broker accepted it, `None` if nothing is in
    /// flight or the broker refused it.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<(Reading, T)>> {
        let Some((delivery, _, _)) = self.pending.front_mut() else { return Ok(None) };
        let result = delivery.await;
        let Some((_, reading, about)) = self.pending.pop_front() else { return Ok(None) };
        match result {
            Ok(_) => {
                self.delivered += 1;
                Ok(Some((reading, about)))
            }
            Err(error @ Error::Closed) => Err(explain(error)),
            Err(error) => {
                // Others may be accepted: one device's topic is denied, or the broker is full for a while.
                self.refused += 1;
                let Reading { device, quantity, .. } = reading;
                tracing::warn!(device, quantity, "not accepted by the broker: {error}");
                Ok(None)
            }
        }
    }

    /// Whether anything is in flight.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Disconnects after all results.
    pub(super) async fn end(mut self) -> anyhow::Result<u64> {
        while self.is_busy() {
            self.next().await?;
        }
        self.client.disconnect().await;
        if self.refused > 0 {
            bail!("the broker refused {} of {}", self.refused, self.refused + self.delivered);
        }
        Ok(self.delivered)
    }
}

/// Returns only on a permanent failure: a sensor outlives its broker's restarts.
pub(super) async fn watch(mut events: Events) -> anyhow::Error {
    loop {
        match events.next().await {
            Some(Event::Disconnected { reason, retry_in: None }) => return explain(reason),
            Some(Event::Disconnected { reason, retry_in: Some(wait) }) => {
                tracing::warn!("{reason}; trying again in {:.1} s", wait.as_secs_f64());
            }
            Some(Event::Connected { transport, url, .. }) => {
                tracing::info!(%url, transport = transport.scheme(), "connected");
            }
            Some(_) => {}
            // Closed normally: the readings have their own results.
            None => std::future::pending().await,
        }
    }
}
