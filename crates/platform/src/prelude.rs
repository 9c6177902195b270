//! Names that all handlers of requests use: extractors, answers, rights, the database, text and time.

pub(crate) use axum::http::StatusCode;
pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use utoipa::{IntoParams, ToSchema};
pub(crate) use uuid::Uuid;

pub(crate) use crate::accounts::caller::{Call, Id, Ids, Member};
pub(crate) use crate::app::App;
pub(crate) use crate::extract::{Body, Each, Import, Params, Unread, at_most, given};
pub(crate) use crate::number::{Amount, Place};
pub(crate) use crate::paging::{self, PageQuery, page_query};
pub(crate) use crate::problem::Problem;
pub(crate) use crate::requests::{Edit, Lookup, Single};
pub(crate) use crate::respond::{
    Answer, Conditions, ImportResults, Page, done, done_to, json, open_cursor, open_number,
    open_numbers,
};
pub(crate) use crate::role::{Deed, Role};
pub(crate) use crate::store::{Db, TwinDb};
pub(crate) use crate::text::{Line, Name, Note, Text, Title};
pub(crate) use crate::time::Time;
