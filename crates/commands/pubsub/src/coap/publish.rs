//! `fulmar pub coap://…`: a message is a PUT if it is to be kept (-r), or else a POST. Whatever -q says it is
//! confirmable, so that it is known whether it arrived.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use bytes::Bytes;
use fulmar_coap::{Call, Method};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::wire::Wire;
use super::{TrustArgs, Url, check};

/// Messages to publish, and where to.
pub(crate) struct Job {
    pub(crate) url: String,
    pub(crate) given: TrustArgs,
    pub(crate) topic: String,
    pub(crate) retain: bool,
    /// `None`: each line of standard input is a payload.
    pub(crate) payload: Option<Bytes>,
    pub(crate) repeat: u64,
    pub(crate) repeat_delay: Duration,
    pub(crate) json: bool,
}

/// Publishes all of it, one message after the other: the next is sent when the server has answered.
pub(crate) async fn publish(job: Job) -> anyhow::Result<()> {
    let url = Url::parse(&job.url)?;
    let path = url.path(&job.topic)?;
    let mut wire = Wire::open(&url, &job.given).await?;
    let start = Instant::now();
    let mut delivered = 0u64;
    if let Some(payload) = job.payload.clone() {
        for number in 0..job.repeat {
            if number > 0 && !job.repeat_delay.is_zero() {
                tokio::time::sleep(job.repeat_delay).await;
            }
            check(&job.topic, &wire.request(job.call(&path, payload.clone())).await?)?;
            delivered += 1;
        }
    } else {
        let mut input = BufReader::new(tokio::io::stdin());
        let mut line = Vec::new();
        while input.read_until(b'\n', &mut line).await.context("standard input")? > 0 {
            if line.last() == Some(&b'\n') {
                line.pop();
            }
            let payload = std::mem::take(&mut line).into();
            check(&job.topic, &wire.request(job.call(&path, payload)).await?)?;
            delivered += 1;
        }
    }
    wire.close().await;
    if job.json {
        let seconds = start.elapsed().as_secs_f64();
        println!("{}", serde_json::json!({ "delivered": delivered, "seconds": seconds }));
    }
    Ok(())
}

impl Job {
    fn call(&self, path: &[String], payload: Bytes) -> Call {
        // Without a payload, keeping it means forgetting the last one.
        let method = match (self.retain, payload.is_empty()) {
            (true, true) => Method::Delete,
            (true, false) => Method::Put,
            (false, _) => Method::Post,
        };
        Call { payload, ..Call::new(method, path.to_vec()) }
    }
}
