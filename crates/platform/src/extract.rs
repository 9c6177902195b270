//! Requests as types: bodies and queries that are understood whole or answered with what is wrong.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::problem::Problem;

/// A JSON body.
pub(crate) struct Body<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::media_type("expected a body of content-type application/json"));
        }
        parse(&bytes(request, state).await?).map(Body)
    }
}

/// The whole body, within the endpoint's bound.
pub(crate) async fn bytes<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    Bytes::from_request(request, state).await.map_err(|rejection| {
        match rejection.status().as_u16() {
            413 => Problem::too_large("the body is too large"),
            _ => Problem::malformed("the body did not arrive whole"),
        }
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"))
}

/// Reads JSON; an error names the place.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
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

/// One thing or many, told apart by `items`.
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
    /// What it calls itself, where that can be told.
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

/// Tells `null` from a value that is not given, for partial changes.
#[allow(clippy::option_option)]
pub(crate) fn given<'de, D, T>(from: D) -> Result<Option<Option<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Option::<T>::deserialize(from).map(Some)
}
