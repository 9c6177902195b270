//! Requests as types: bodies and queries that are understood whole or answered with what is wrong.
//!
//! A body is read when its sender is known: extractors of the head come first. Small ones are read then; those
//! that may be large wait until the handler has seen that the sender may send them.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Formatter;
use std::iter::successors;
use std::marker::PhantomData;

use axum::body::{Bytes, to_bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use fulmar_http::decompress;
use http_body_util::LengthLimitError;
use serde::de::{self, DeserializeOwned, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_path_to_error::{Path, Segment};

use crate::in_hand::InHand;
use crate::problem::{Problem, Result};

/// Bytes of a body that is no upload.
const SMALL_BYTES: usize = 256 * 1024;
/// Items of an import; each kind may have its own limit below this.
const MAX_IMPORTED: usize = 5000;
/// The most bytes that a compressed import may have, decompressed.
const DECOMPRESSED_BYTES: usize = 16 << 20;
/// The most bytes of a request's body without login.
pub(crate) const STRANGERS_BYTES: usize = 16 * 1024;

/// A JSON body of at most `MAX_BYTES`.
pub(crate) struct Body<T, const MAX_BYTES: usize = SMALL_BYTES>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned, const MAX_BYTES: usize> FromRequest<S>
    for Body<T, MAX_BYTES>
{
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        json(request, MAX_BYTES).await.map(Body)
    }
}

/// A JSON body, as large as the endpoint lets it be, that has not been read yet.
pub(crate) struct Unread<T>(Request, PhantomData<fn() -> T>);

impl<S: Send + Sync, T> FromRequest<S> for Unread<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self> {
        Ok(Unread(request, PhantomData))
    }
}

impl<T: DeserializeOwned> Unread<T> {
    /// Reads it when it is its turn, which lasts until it is answered.
    pub(crate) async fn read(self) -> Result<T> {
        object(&self.bytes().await?)
    }
}

impl<T: DeserializeOwned> Unread<Import<T>> {
    /// The same of an import, of at most `most` of these things.
    pub(crate) async fn read_import(self, most: usize, things: &str) -> Result<Import<T>> {
        match import(&self.bytes().await?)? {
            Import::Many(items) if items.len() > most => {
                Err(Problem::too_large(format!("at most {most} {things} at once")))
            }
            import => Ok(import),
        }
    }
}

impl<T> Unread<T> {
    async fn bytes(self) -> Result<Bytes> {
        let in_hand = self.0.extensions().get::<InHand>().cloned();
        let (headers, bytes) = json_bytes(self.0, usize::MAX).await?;
        if let Some(in_hand) = in_hand {
            in_hand.turn().await?;
        }
        Ok(decompress(&headers, bytes, DECOMPRESSED_BYTES)?)
    }
}

async fn json<T: DeserializeOwned>(request: Request, max_bytes: usize) -> Result<T> {
    let (headers, bytes) = json_bytes(request, max_bytes).await?;
    object(&decompress(&headers, bytes, max_bytes)?)
}

/// A body as it was sent, and the headers that say whether it is compressed.
async fn json_bytes(request: Request, max_bytes: usize) -> Result<(HeaderMap, Bytes)> {
    if !is_json(request.headers()) {
        return Err(Problem::media_type("expected a body of content-type application/json"));
    }
    let headers = request.headers().clone();
    Ok((headers, bytes(request, max_bytes).await?))
}

/// The whole body, of at most `max_bytes`, and no more than the endpoint accepts. Its sender is then still who it was.
pub(crate) async fn bytes(request: Request, max_bytes: usize) -> Result<Bytes> {
    let in_hand = request.extensions().get::<InHand>().cloned();
    let bytes = to_bytes(request.into_body(), max_bytes).await.map_err(|error| {
        if is_too_long(&error) {
            Problem::too_large("the body is too large")
        } else {
            Problem::malformed("the body is incomplete")
        }
    })?;
    if let Some(in_hand) = in_hand {
        in_hand.ask_again()?;
    }
    Ok(bytes)
}

fn is_too_long(error: &(dyn Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_long)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"))
}

/// Reads a JSON object.
fn object<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    refuse_list(bytes)?;
    parse(bytes)
}

/// Serde takes a list for the members of a struct in their order, which would find fault with the first of them.
fn refuse_list(json: &[u8]) -> Result<()> {
    if json.trim_ascii_start().first() == Some(&b'[') {
        return Err(Problem::invalid_whole(NOT_AN_OBJECT));
    }
    Ok(())
}

/// Reads JSON; an error names the place.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error: PathError<_>| {
        match error.inner().classify() {
            serde_json::error::Category::Data => invalid_json(&error),
            _ => Problem::malformed(format!("the body is not JSON: {}", error.inner())),
        }
    })?;
    json.end().map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    Ok(value)
}

type PathError<E> = serde_path_to_error::Error<E>;

/// The fault, without where it is in the text: the field says it, and an item's sender does not know the text.
fn invalid_json(error: &PathError<serde_json::Error>) -> Problem {
    let inner = error.inner();
    let text = inner.to_string();
    let position = format!(" at line {} column {}", inner.line(), inner.column());
    invalid(error.path(), text.strip_suffix(&position).unwrap_or(&text))
}

fn invalid(path: &Path, text: &str) -> Problem {
    let detail = plain(text);
    if path.iter().all(|segment| matches!(segment, Segment::Unknown)) {
        Problem::invalid_whole(detail)
    } else {
        Problem::invalid(path.to_string(), detail)
    }
}

const NOT_AN_OBJECT: &str = "expected an object";

/// Error of serde, without the names of our types.
fn plain(text: &str) -> &str {
    let wants_struct =
        text.rsplit_once(", expected ").is_some_and(|(_, wanted)| wanted.starts_with("struct "));
    if wants_struct {
        NOT_AN_OBJECT
    } else if text.starts_with("UUID parsing failed: ") {
        "expected a UUID"
    } else {
        text
    }
}

/// Parameters behind the question mark.
pub(crate) struct Params<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(query)| Params(query)).map_err(|rejection| invalid_query(&rejection))
    }
}

fn invalid_query(rejection: &QueryRejection) -> Problem {
    let mut causes = successors(rejection.source(), |&error| error.source());
    match causes.find_map(|error| error.downcast_ref::<PathError<de::value::Error>>()) {
        Some(error) => invalid(error.path(), &error.inner().to_string()),
        None => Problem::invalid_whole(rejection.body_text()),
    }
}

/// One item or many, distinguished by the key `items`.
pub(crate) enum Import<T> {
    One(Box<T>),
    Many(Vec<Each<T>>),
}

/// Reads one item or many.
pub(crate) fn import<T: DeserializeOwned>(bytes: &[u8]) -> Result<Import<T>> {
    let has_items = serde_json::from_slice(bytes).is_ok_and(|HasItems { items }| items.is_some());
    if has_items {
        object(bytes).map(|Many { items }| Import::Many(items))
    } else {
        object(bytes).map(|one| Import::One(Box::new(one)))
    }
}

/// Whether there is the key.
#[derive(Deserialize)]
struct HasItems {
    items: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound = "T: DeserializeOwned")]
struct Many<T> {
    #[serde(deserialize_with = "at_most::<MAX_IMPORTED, _, _>")]
    items: Vec<Each<T>>,
}

/// The first items of a list, so that one with more than `MAX` is longer than that and takes no more memory.
pub(crate) fn at_most<'de, const MAX: usize, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    struct BoundedVisitor<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for BoundedVisitor<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, to: &mut Formatter<'_>) -> std::fmt::Result {
            to.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut items = Vec::new();
            while items.len() <= MAX
                && let Some(item) = list.next_element()?
            {
                items.push(item);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(items)
        }
    }

    from.deserialize_seq(BoundedVisitor::<T, MAX>(PhantomData))
}

/// Reads an object; an error names the place in it.
fn understand<T: DeserializeOwned>(json: &str) -> Result<T> {
    refuse_list(json.as_bytes())?;
    let mut json = serde_json::Deserializer::from_str(json);
    serde_path_to_error::deserialize(&mut json).map_err(|error| invalid_json(&error))
}

/// One of several things sent together, each with an outcome of its own: what is wrong with one does
/// not keep the others from being stored.
#[derive(Debug)]
pub(crate) struct Each<T> {
    /// Own identifier, if there is one.
    pub(crate) id: Option<String>,
    pub(crate) item: Result<T>,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Each<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Each<T>, D::Error> {
        // Not as a value, which takes up to a hundred times the memory of its text.
        let raw = <&RawValue>::deserialize(from)?.get();
        let id = serde_json::from_str(raw).ok().and_then(|HasId { id }| id);
        let id = id.filter(|id| id.len() <= 64).map(Cow::into_owned);
        Ok(Each { id, item: understand(raw) })
    }
}

/// An item's identifier.
#[derive(Deserialize)]
struct HasId<'a> {
    #[serde(borrow)]
    id: Option<Cow<'a, str>>,
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
