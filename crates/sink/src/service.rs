//! Requests to web services: line protocol for time series databases, and JSON for any. A batch is one request.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use bytes::Bytes;
use fulmar_config::{Sink, SinkKind, set};
use fulmar_http::sign_webhook;
use fulmar_part::http_client::{self, Pool};
use fulmar_text::hex;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value as Json};

use crate::lines;
use crate::mapping::{Mapping, Record, Value};
use crate::target::Fault;

/// Longest time of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer that an error shows.
const MAX_SHOWN_BYTES: usize = 300;

/// A web service.
pub(crate) struct Service {
    uri: Uri,
    pool: Pool,
    authorization: Option<HeaderValue>,
    secret: Option<String>,
    is_influx: bool,
}

impl Service {
    /// The service of these settings. Nothing is sent yet.
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) fn new(sink: &Sink) -> anyhow::Result<Service> {
        let is_influx = sink.kind == Some(SinkKind::Influx);
        let token = Sink::read_secret(&sink.token_file).context("token_file")?;
        let scheme = if is_influx { "Token" } else { "Bearer" };
        let header = |token: String| HeaderValue::from_str(&format!("{scheme} {}", token.trim()));
        let mut authorization = token.map(header).transpose().context("token_file")?;
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        Ok(Service {
            uri: sink.url.0.parse().context("url")?,
            pool: http_client::pool(&sink.url.0, set(&sink.ca_file), TIMEOUT).context("ca_file")?,
            authorization,
            secret: Sink::read_secret(&sink.secret_file).context("secret_file")?,
            is_influx,
        })
    }

    /// The record as it is in a body.
    ///
    /// # Errors
    /// It cannot be written in the target's form.
    pub(crate) fn text(&self, mapping: &Mapping, record: &Record) -> Result<String, String> {
        match self.is_influx {
            true => lines::line(mapping, record),
            false => Ok(json(mapping, record).to_string() + "\n"),
        }
    }

    /// Writes a batch.
    pub(crate) async fn write(&self, mapping: &Mapping, records: &[Record]) -> Result<(), Fault> {
        let texts = records.iter().map(|record| self.text(mapping, record));
        let body: String = texts.collect::<Result<_, _>>().map_err(Fault::Message)?;
        let request = self.request(Bytes::from(body));
        let request = request.map_err(|error| Fault::Target(format!("{error:#}")))?;
        let answer = http_client::exchange(&self.pool, request, TIMEOUT).await;
        let (status, text) = answer.map_err(|error| Fault::Temporary(format!("{error:#}")))?;
        if status.is_success() {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(&text[..text.len().min(MAX_SHOWN_BYTES)]).into_owned();
        let text = format!("it answered {status}: {shown:?}");
        Err(match status {
            _ if status.is_server_error() => Fault::Temporary(text),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
                Fault::Temporary(text)
            }
            StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::METHOD_NOT_ALLOWED
            | StatusCode::PROXY_AUTHENTICATION_REQUIRED => Fault::Target(format!(
                "{text}: correct url, token_file or secret_file, or the service"
            )),
            _ if status.is_client_error() => Fault::Message(text),
            // A redirection, for one, is not followed: it would take the token elsewhere.
            _ => Fault::Target(format!("{text}: url must be the address that answers 200 or 204")),
        })
    }

    fn request(&self, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
        let kind =
            if self.is_influx { "text/plain; charset=utf-8" } else { "application/x-ndjson" };
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&self.uri)
            .header(header::CONTENT_TYPE, kind)
            .header(header::USER_AGENT, concat!("fulmar/", env!("CARGO_PKG_VERSION")));
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if let Some(secret) = &self.secret {
            let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            // The same for the same messages, so that a receiver recognises a repeated batch.
            let id = hex::encode(&digest(&SHA256, &body).as_ref()[..16]);
            let signature = sign_webhook(secret.as_bytes(), &id, now_s, &body);
            request = request.header("webhook-id", id).header("webhook-timestamp", now_s);
            request = request.header("webhook-signature", signature);
        }
        Ok(request.body(Full::new(body))?)
    }
}

/// The record as an object.
pub(crate) fn json(mapping: &Mapping, record: &Record) -> Json {
    let mut object = Map::new();
    object.insert("id".to_owned(), record.id.clone().into());
    object.insert("at".to_owned(), Value::Time(record.at).text().into());
    object.insert("topic".to_owned(), record.topic.clone().into());
    for ((name, _), value) in mapping.columns.iter().zip(&record.values) {
        let value = match value {
            None => Json::Null,
            Some(Value::Number(number)) => (*number).into(),
            Some(Value::Integer(number)) => (*number).into(),
            Some(Value::Boolean(value)) => (*value).into(),
            Some(Value::Json(value)) => value.clone(),
            Some(other) => other.text().into(),
        };
        object.insert(name.clone(), value);
    }
    object.into()
}
