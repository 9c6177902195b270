//! Error responses (RFC 9457), in the form of the platform's: a status, and a sentence that states what to do.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// An error (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// `about:blank`: `title` is that of the status.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// What happened and what to do.
    detail: String,
    #[serde(skip)]
    #[schema(ignore)]
    retry_after_s: Option<u64>,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            retry_after_s: None,
        }
    }

    pub(crate) fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A value that is not accepted.
    pub(crate) fn invalid(field: &str, detail: impl std::fmt::Display) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{field}: {detail}"))
    }

    pub(crate) fn unauthorized(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(crate) fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn method() -> Problem {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not support this method")
    }

    pub(crate) fn conflict(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    /// What happened.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn too_often(detail: impl Into<String>, retry_after_s: u64) -> Problem {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
        Problem { retry_after_s: Some(retry_after_s.max(1)), ..problem }
    }

    pub(crate) fn no_space(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail)
    }

    pub(crate) fn unavailable(detail: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        Problem { retry_after_s: Some(1), ..problem }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Strings and numbers: it has a JSON form.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, kind, body).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            // Not Basic: a browser would ask for a password, remember it, and send it with any page's requests.
            let scheme = HeaderValue::from_static("Bearer realm=\"fulmar administration\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
