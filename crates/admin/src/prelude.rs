//! Names that all handlers use: extractors, callers and their roles, pages, answers, and the log of changes.

pub(crate) use axum::http::StatusCode;
pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use serde_json::{Value, json};
pub(crate) use utoipa::{IntoParams, ToSchema};

pub(crate) use crate::app::App;
pub(crate) use crate::audit::Change;
pub(crate) use crate::caller::{Administrator, Operator, Viewer};
pub(crate) use crate::extract::{Json, Name, Query};
pub(crate) use crate::identities::After;
pub(crate) use crate::page::{Everything, PageQuery, Paged, SLICE};
pub(crate) use crate::problem::{Problem, Result};
