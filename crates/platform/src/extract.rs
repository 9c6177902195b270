//! Requests as types: bodies and queries that are understood whole or answered with what is wrong.
//!
//! A body is read when its sender is known: extractors of the head come first. Small ones are read then; those
//! that may be large wait until the handler has seen that the sender may send them.

use std::error::Error;
use std::marker::PhantomData;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::LengthLimitError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::problem::Problem;

/// Bytes of a body that is no upload.
const SMALL_BYTES: usize = 256 * 1024;
/// The most bytes of a request's body without login.
pub(crate) const STRANGERS_BYTES: usize = 16 * 1024;

/// The most JSON values of a body: twice what an import of 5000 meters has. As a tree, or as an item with its problem, a
/// value takes up to a hundred times the bytes of its text.
const MAX_VALUES: usize = 200_000;

/// A JSON body of at most `MAX_BYTES`.
pub(crate) struct Body<T, const MAX_BYTES: usize = SMALL_BYTES>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned, const MAX_BYTES: usize> FromRequest<S>
    for Body<T, MAX_BYTES>
{
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        json(request, MAX_BYTES).await.map(Body)
    }
}

/// A JSON body, as large as the endpoint lets it be, that has not been read yet.
pub(crate) struct Unread<T>(Request, PhantomData<fn() -> T>);

impl<S: Send + Sync, T> FromRequest<S> for Unread<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        Ok(Unread(request, PhantomData))
    }
}

impl<T: DeserializeOwned> Unread<T> {
    /// Reads it.
    pub(crate) async fn read(self) -> Result<T, Problem> {
        json(self.0, usize::MAX).await
    }
}

async fn json<T: DeserializeOwned>(request: Request, max_bytes: usize) -> Result<T, Problem> {
    if !is_json(request.headers()) {
        return Err(Problem::media_type("expected a body of content-type application/json"));
    }
    parse(&bytes(request, max_bytes).await?)
}

/// The whole body, of at most `max_bytes`, and no more than the endpoint accepts.
pub(crate) async fn bytes(request: Request, max_bytes: usize) -> Result<Bytes, Problem> {
    to_bytes(request.into_body(), max_bytes).await.map_err(|error| {
        if is_too_long(&error) {
            Problem::too_large("the body is too large")
        } else {
            Problem::malformed("the body is incomplete")
        }
    })
}

fn is_too_long(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_long)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"))
}

/// Reads JSON; an error names the place.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    if values(bytes) > MAX_VALUES {
        let detail = format!("the body has more than {MAX_VALUES} JSON values: send fewer at once");
        return Err(Problem::too_large(detail));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.inner());
        match inner.classify() {
            serde_json::error::Category::Data => Problem::invalid(path, inner.to_string()),
            _ => Problem::malformed(format!("the body is not JSON: {inner}")),
        }
    })?;
    json.end().map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    Ok(value)
}

/// How many values JSON has at most: one behind each comma, and one in each list and object.
fn values(json: &[u8]) -> usize {
    let (mut values, mut is_in_text, mut is_escaped) = (1, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_text,
            b'"' => is_in_text = !is_in_text,
            b',' | b'[' | b'{' if !is_in_text => values += 1,
            _ => {}
        }
    }
    values
}

/// What stands behind the question mark.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query
            .map(|Query(query)| Params(query))
            .map_err(|rejection| Problem::invalid("query", rejection.body_text()))
    }
}

/// One item or many, distinguished by the key `items`.
pub(crate) enum Import<T> {
    One(Box<T>),
    Many(Vec<Each<T>>),
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Import<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Import<T>, D::Error> {
        use serde::de::Error as _;
        let value = serde_json::Value::deserialize(from)?;
        if value.get("items").is_none() {
            let one = serde_path_to_error::deserialize(value);
            let explain = |error: serde_path_to_error::Error<_>| {
                D::Error::custom(format!("{}: {}", error.path(), error.inner()))
            };
            return one.map(|one| Import::One(Box::new(one))).map_err(explain);
        }
        let many: Many<T> = serde_json::from_value(value).map_err(D::Error::custom)?;
        Ok(Import::Many(many.items))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "T: DeserializeOwned")]
struct Many<T> {
    items: Vec<Each<T>>,
}

/// One of several things sent together, each with an outcome of its own: what is wrong with one does
/// not keep the others from being stored.
#[derive(Debug)]
pub(crate) struct Each<T> {
    /// Its own identifier, if there is one.
    pub(crate) id: Option<String>,
    pub(crate) item: Result<T, Problem>,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Each<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Each<T>, D::Error> {
        let value = serde_json::Value::deserialize(from)?;
        let id = value.get("id").and_then(|id| id.as_str());
        let id = id.filter(|id| id.len() <= 64).map(str::to_owned);
        let item = serde_path_to_error::deserialize(value)
            .map_err(|error| Problem::invalid(error.path().to_string(), error.inner().to_string()));
        Ok(Each { id, item })
    }
}

/// Distinguishes `null` from a missing value, for partial changes.
#[allow(clippy::option_option)]
pub(crate) fn given<'de, D, T>(from: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(from).map(Some)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_very_many_values_is_refused_before_they_take_memory() {
        let list = |item: &str, items: usize| format!("[{}]", vec![item; items].join(","));
        let status = |json: String| match parse::<Vec<Each<u8>>>(json.as_bytes()) {
            Ok(items) => items.len() as u64,
            Err(problem) => problem.status().into(),
        };
        assert_eq!(status(list("x", MAX_VALUES)), 413);
        assert_eq!(status(list("[[]]", MAX_VALUES / 2)), 413);
        assert_eq!(status(list("{}", 1000)), 1000);
        // What is in a text does not count, quotation marks included.
        let text = format!(r#""\"{}""#, ",[{".repeat(MAX_VALUES));
        assert_eq!(status(list(&text, 1)), 1);
    }
}
