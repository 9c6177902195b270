//! Answers: JSON with an ETag, answered with 304 to those who have it (RFC 9110 section 13), pages of
//! lists, and what became of imports.

use std::collections::HashSet;

use crate::values::*;
use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};

/// Answer of a handler.
pub(crate) type Answer = Result<Response>;

/// The conditions of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conditions {
    if_match: Option<String>,
    if_none_match: Option<String>,
}

impl<S: Send + Sync> FromRequestParts<S> for Conditions {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let text = |name: HeaderName| -> Result<Option<String>> {
            let Some(value) = parts.headers.get(&name) else { return Ok(None) };
            let text = value.to_str().map_err(|_| Problem::malformed(format!("{name}: not text")));
            text.map(|text| Some(text.to_owned()))
        };
        let (if_match, if_none_match) = (text(header::IF_MATCH)?, text(header::IF_NONE_MATCH)?);
        Ok(Conditions { if_match, if_none_match })
    }
}

impl Conditions {
    /// Whether what is to be changed is what the client saw.
    pub(crate) fn hold(&self, etag: &str) -> Result<()> {
        match &self.if_match {
            Some(wanted) if !lists(wanted, etag) => Err(Problem::stale()),
            _ => Ok(()),
        }
    }

    /// As [`Conditions::hold`], of something whose ETag is either that of what can be changed of it or,
    /// as [`Conditions::json`] gives it, the digest of all that was shown.
    pub(crate) fn hold_of<T: Serialize>(&self, shown: &T, etag: &str) -> Result<()> {
        match self.hold(etag) {
            Err(_) => self.hold(&digest_tag(&to_json(shown)?)),
            held => held,
        }
    }

    /// The JSON of `body`, tagged with its digest.
    pub(crate) fn json<T: Serialize>(&self, body: &T) -> Answer {
        let bytes = to_json(body)?;
        let etag = digest_tag(&bytes);
        Ok(self.tagged(bytes.into(), "application/json", &etag))
    }

    /// The JSON of `body`, which has an ETag of its own.
    pub(crate) fn json_tagged<T: Serialize>(&self, body: &T, etag: &str) -> Answer {
        Ok(self.tagged(to_json(body)?.into(), "application/json", etag))
    }

    /// Whether the client has what has this ETag, and gets 304.
    pub(crate) fn knows(&self, etag: &str) -> bool {
        self.if_none_match.as_ref().is_some_and(|known| lists(known, etag))
    }

    /// Any content.
    pub(crate) fn tagged(&self, body: Body, kind: &'static str, etag: &str) -> Response {
        let mut response = if self.knows(etag) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(header::CONTENT_TYPE, kind)], body).into_response()
        };
        let headers = response.headers_mut();
        if let Ok(etag) = HeaderValue::from_str(etag) {
            headers.insert(header::ETAG, etag);
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
        response
    }
}

/// Whether a list of ETags has this one. Weak ones count: what they are of is never other bytes.
fn lists(tags: &str, etag: &str) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    tags.split(',').map(plain).any(|tag| tag == "*" || tag == etag)
}

/// An ETag of these bytes.
fn digest_tag(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    format!("\"{}\"", URL_SAFE_NO_PAD.encode(&digest.as_ref()[..12]))
}

fn to_json<T: Serialize>(body: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(body).map_err(|error| internal(&error))
}

/// JSON with a status, for what is not asked for again.
pub(crate) fn json<T: Serialize>(status: StatusCode, body: &T) -> Answer {
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    Ok((status, headers, to_json(body)?).into_response())
}

/// Nothing, but it was done.
pub(crate) fn done() -> Answer {
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// The same, if what it was done to exists.
pub(crate) fn done_to(exists: bool, what: &str) -> Answer {
    if exists { done() } else { Err(Problem::missing(what)) }
}

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T: ToSchema> {
    /// The items.
    pub(crate) items: Vec<T>,
    /// The `cursor` of the next page; null at the end.
    pub(crate) next: Option<String>,
}

impl<T: ToSchema> Page<T> {
    /// From up to one item more than fits.
    pub(crate) fn cut(items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Page<T> {
        let rows = items.into_iter().map(|item| (item, ())).collect();
        Page::of_rows(rows, limit, |item, ()| cursor(item))
    }

    /// The same of items that have beside them what the cursor is made of.
    pub(crate) fn of_rows<K>(
        mut rows: Vec<(T, K)>,
        limit: usize,
        cursor: impl Fn(&T, &K) -> String,
    ) -> Page<T> {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more);
        let next = last.map(|(item, key)| URL_SAFE_NO_PAD.encode(cursor(item, key)));
        Page { items: rows.into_iter().map(|(item, _)| item).collect(), next }
    }
}

/// The result for one item of an import.
#[derive(Serialize, ToSchema)]
pub(crate) struct Imported {
    id: Option<String>,
    status: ImportStatus,
    /// Why it was rejected.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ImportStatus {
    Created,
    Updated,
    Rejected,
}

impl Imported {
    /// It is there now; perhaps it was before.
    fn stored(id: &Name, was_known: bool) -> Imported {
        let status = if was_known { ImportStatus::Updated } else { ImportStatus::Created };
        Imported { id: Some(id.to_string()), status, detail: None }
    }

    fn rejected(id: Option<String>, problem: &Problem) -> Imported {
        let detail = Some(problem.detail().to_owned());
        Imported { id, status: ImportStatus::Rejected, detail }
    }
}

/// The results of an import.
#[derive(Serialize, ToSchema)]
pub(crate) struct ImportResults {
    results: Vec<Imported>,
}

impl ImportResults {
    /// Stores each item under its name, which no earlier one of the import may have; `store` says whether it was there before.
    pub(crate) fn store_each<T>(
        items: Vec<Each<T>>,
        name_of: impl Fn(&T) -> Result<Name>,
        mut store: impl FnMut(&Name, &T) -> Result<bool>,
    ) -> Result<ImportResults> {
        let mut names = HashSet::new();
        let one = |Each { id, item }| match item.and_then(|new| Ok((name_of(&new)?, new))) {
            Err(problem) => Ok(Imported::rejected(id, &problem)),
            Ok((name, _)) if names.contains(&name) => {
                let problem = Problem::conflict("an earlier item of this import has this id");
                Ok(Imported::rejected(Some(name.to_string()), &problem))
            }
            Ok((name, new)) => {
                let imported = match store(&name, &new) {
                    Ok(was_known) => Imported::stored(&name, was_known),
                    Err(problem) if problem.status() < 500 => {
                        Imported::rejected(Some(name.to_string()), &problem)
                    }
                    Err(problem) => return Err(problem),
                };
                names.insert(name);
                Ok(imported)
            }
        };
        Ok(ImportResults { results: items.into_iter().map(one).collect::<Result<_, _>>()? })
    }
}

/// Value of a cursor.
pub(crate) fn open_cursor(cursor: Option<&str>) -> Result<Option<String>> {
    let Some(cursor) = cursor else { return Ok(None) };
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    text.map(Some).ok_or_else(wrong_cursor)
}

/// Value of a cursor that was made of a number.
pub(crate) fn open_number(cursor: Option<&str>) -> Result<Option<i64>> {
    let number = open_cursor(cursor)?.map(|text| text.parse());
    number.transpose().map_err(|_| wrong_cursor())
}

/// Value of a cursor that was made of two numbers and a space between.
pub(crate) fn open_numbers(cursor: Option<&str>) -> Result<Option<(i64, i64)>> {
    let Some(text) = open_cursor(cursor)? else { return Ok(None) };
    let numbers = text.split_once(' ').and_then(|(a, b)| a.parse().ok().zip(b.parse().ok()));
    numbers.map(Some).ok_or_else(wrong_cursor)
}

fn wrong_cursor() -> Problem {
    Problem::invalid("cursor", "use the `next` of the previous page")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_compared_in_lists() {
        for (tags, same) in
            [("\"a\"", true), ("\"b\", \"a\"", true), ("W/\"a\"", true), ("*", true), ("a", false)]
        {
            assert_eq!(lists(tags, "\"a\""), same, "{tags}");
        }
    }
}
