//! Error responses of APIs (RFC 9457): `application/problem+json` with a status, a sentence for people and, where single
//! values are wrong, which.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::password_login::Crowded;
use crate::{CodingError, NoLongerAllowed, NoRoom};

/// A value that cannot be taken.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub(crate) struct Fault {
    /// Where it is, such as `items[3].at`.
    field: String,
    /// The fault of the value.
    detail: String,
}

/// An answer that is none (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Problem {
    /// Kind of problem: `about:blank`, which says that `title` is that of the status.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// Description of what happened and what to do.
    detail: String,
    /// Values that are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Fault>,
    #[serde(skip)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    retry_after_s: Option<u64>,
    #[serde(skip)]
    #[cfg_attr(feature = "schema", schema(ignore))]
    challenge: &'static str,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
            retry_after_s: None,
            challenge: "Bearer",
        }
    }

    /// The request cannot be understood.
    pub fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// It is understood, but a value cannot be taken.
    pub fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Problem {
        let (field, detail) = (field.into(), detail.into());
        let mut problem = Problem::invalid_whole(format!("{field}: {detail}"));
        problem.errors.push(Fault { field, detail });
        problem
    }

    /// It cannot be taken for a reason that is not a single value's.
    pub fn invalid_whole(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// The caller is unknown (401).
    pub fn unauthorized(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// The caller is not allowed to do this (403).
    pub fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, detail)
    }

    /// It does not exist, or the caller may not know of it (404); `what` is its kind.
    pub fn missing(what: &str) -> Problem {
        Problem::not_found(format!("there is no such {what}"))
    }

    /// It does not exist (404).
    pub fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    /// The path has no such method.
    pub fn method() -> Problem {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not support this method")
    }

    /// It is there already, as something else.
    pub fn conflict(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    /// It has changed since it was looked at.
    pub fn stale() -> Problem {
        let detail = "this has changed in the meantime: get it again and repeat the change";
        Problem::new(StatusCode::PRECONDITION_FAILED, detail)
    }

    /// More than is taken at once.
    pub fn too_large(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// A kind of content that is not taken.
    pub fn media_type(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// Too often.
    pub fn too_often(detail: impl Into<String>, retry_after_s: u64) -> Problem {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
        Problem { retry_after_s: Some(retry_after_s.max(1)), ..problem }
    }

    /// This build of the server cannot do it.
    pub fn absent(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_IMPLEMENTED, detail)
    }

    /// The server cannot keep its promises now.
    pub fn unavailable(detail: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        Problem { retry_after_s: Some(1), ..problem }
    }

    /// The disk, or the budget for it, is used up (507).
    pub fn no_space(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail)
    }

    /// The server failed; its log shows why (500).
    pub fn internal() -> Problem {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed; its log shows why")
    }

    /// The same, to be tried again after this many seconds.
    #[must_use]
    pub fn retry_after(self, seconds: u64) -> Problem {
        Problem { retry_after_s: Some(seconds), ..self }
    }

    /// The same, with another scheme for credentials than `Bearer` in the header `WWW-Authenticate` of 401.
    #[must_use]
    pub fn challenge(self, challenge: &'static str) -> Problem {
        Problem { challenge, ..self }
    }

    /// The sentence for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The status.
    pub fn status(&self) -> u16 {
        self.status
    }
}

impl From<CodingError> for Problem {
    fn from(error: CodingError) -> Problem {
        match error {
            CodingError::Unsupported => Problem::media_type(error.to_string()),
            CodingError::TooLarge => Problem::too_large(error.to_string()),
            CodingError::Malformed => Problem::malformed(error.to_string()),
        }
    }
}

impl From<NoRoom> for Problem {
    fn from(_: NoRoom) -> Problem {
        Problem::unavailable(NoRoom::DETAIL)
    }
}

impl From<NoLongerAllowed> for Problem {
    fn from(_: NoLongerAllowed) -> Problem {
        Problem::unauthorized(NoLongerAllowed::DETAIL)
    }
}

impl From<Crowded> for Problem {
    fn from(_: Crowded) -> Problem {
        Problem::unavailable("too many logins are waiting")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = (header::CONTENT_TYPE, "application/problem+json");
        // Strings and numbers: it has a JSON form.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response =
            (status, [kind, (header::CACHE_CONTROL, "no-store")], body).into_response();
        let headers = response.headers_mut();
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(self.challenge));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
