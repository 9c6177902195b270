//! What an answer that is none says (RFC 9457): `application/problem+json` with a status, a sentence
//! for people and, where single values are wrong, which.
//!
//! Internal errors are logged, and their details are not sent.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fulmar_http::CodingError;
use serde::Serialize;
use utoipa::ToSchema;

use crate::log_limit::LogLimit;
use crate::store::sql::DatabaseError;

/// When to try again while the disk is full.
const FULL_RETRY_S: u64 = 60;

/// A value that cannot be taken.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Fault {
    /// Where it is, such as `items[3].at`.
    pub(crate) field: String,
    /// What is wrong with it.
    pub(crate) detail: String,
}

/// An answer that is none (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// What kind: `about:blank`, which says that `title` is that of the status.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// What happened and what to do.
    detail: String,
    /// Which values are wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<Fault>,
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
            errors: Vec::new(),
            retry_after_s: None,
        }
    }

    /// The request cannot be understood.
    pub(crate) fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// It is understood, but a value cannot be taken.
    pub(crate) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Problem {
        let (field, detail) = (field.into(), detail.into());
        let mut problem = Problem::invalid_whole(format!("{field}: {detail}"));
        problem.errors.push(Fault { field, detail });
        problem
    }

    /// It cannot be taken for a reason that is not a single value's.
    pub(crate) fn invalid_whole(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// The caller is unknown (401).
    pub(crate) fn unauthorized(detail: &str) -> Problem {
        Problem::new(StatusCode::UNAUTHORIZED, detail)
    }

    /// The caller is not allowed to do this (403).
    pub(crate) fn forbidden(detail: &str) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, detail)
    }

    /// It does not exist, or the caller may not know of it (404).
    pub(crate) fn not_found(what: &str) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, format!("there is no such {what}"))
    }

    /// The path has no such method.
    pub(crate) fn method() -> Problem {
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this address does not support this method")
    }

    /// It is there already, as something else.
    pub(crate) fn conflict(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    /// It has changed since it was looked at.
    pub(crate) fn stale() -> Problem {
        let detail = "this has changed in the meantime: get it again and repeat the change";
        Problem::new(StatusCode::PRECONDITION_FAILED, detail)
    }

    /// More than is taken at once.
    pub(crate) fn too_large(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    /// A kind of content that is not taken.
    pub(crate) fn media_type(detail: &str) -> Problem {
        Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    /// Too often.
    pub(crate) fn too_often(detail: &str, retry_after_s: u64) -> Problem {
        let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
        Problem { retry_after_s: Some(retry_after_s.max(1)), ..problem }
    }

    /// This build of the server cannot do it.
    #[allow(dead_code, reason = "a build with all features lacks nothing")]
    pub(crate) fn absent(detail: &str) -> Problem {
        Problem::new(StatusCode::NOT_IMPLEMENTED, detail)
    }

    /// The server cannot keep its promises now.
    pub(crate) fn unavailable(detail: &str) -> Problem {
        let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        Problem { retry_after_s: Some(1), ..problem }
    }

    /// The disk, or the budget for it, is used up (507).
    pub(crate) fn no_space(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail)
    }

    /// Something went wrong that should not; `why` goes to the log only.
    pub(crate) fn internal(why: &dyn std::fmt::Display) -> Problem {
        tracing::error!("platform: {why}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the server failed; its log shows why")
    }

    /// The sentence for people.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    /// The status.
    pub(crate) fn status(&self) -> u16 {
        self.status
    }
}

impl From<CodingError> for Problem {
    fn from(error: CodingError) -> Problem {
        match error {
            CodingError::Unsupported => Problem::media_type(&error.to_string()),
            CodingError::TooLarge => Problem::too_large(error.to_string()),
            CodingError::Malformed => Problem::malformed(error.to_string()),
        }
    }
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Problem {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull};
        match &error {
            DatabaseError::ZeroCharacter => Problem::malformed(error.to_string()),
            DatabaseError::Sqlite(sqlite) => match sqlite.sqlite_error_code() {
                Some(DiskFull) => {
                    static LOG: LogLimit = LogLimit::new();
                    if let Some(times) = LOG.occurred(std::time::Instant::now()) {
                        tracing::error!(
                            times,
                            "platform storage: the disk, or account \"platform\" of \
                            [limits] disk, is full"
                        );
                    }
                    let problem =
                        Problem::no_space("the server's disk is full; nothing was stored");
                    Problem { retry_after_s: Some(FULL_RETRY_S), ..problem }
                }
                Some(DatabaseBusy | DatabaseLocked) => {
                    Problem::unavailable("the server is busy; nothing was stored")
                }
                _ => Problem::internal(&format_args!("storage: {error}")),
            },
            // The code that lost the connection has logged that.
            DatabaseError::Away(..) => Problem::unavailable(
                "the server's database cannot be reached; nothing was acknowledged: send it again \
                 later",
            ),
            DatabaseError::Taken => {
                tracing::error!("platform storage: {error}");
                Problem::unavailable("the server's database is used by another server")
            }
            DatabaseError::NotShared(why) => Problem::unavailable(&why.to_string()),
            DatabaseError::Postgres { state, .. } if is_passing(state) => {
                tracing::error!("platform storage: {error}");
                Problem::unavailable("the server's database cannot do this now; nothing was stored")
            }
            _ => Problem::internal(&format_args!("storage: {error}")),
        }
    }
}

/// Whether PostgreSQL may do it another time (its manual, appendix A): it lacks connections, space or memory,
/// somebody ended it or the wait for a lock, transactions met, or it only reads.
fn is_passing(state: &str) -> bool {
    ["08", "40", "53", "55", "57", "58"].contains(&state.get(..2).unwrap_or_default())
        || state == "25006"
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}
