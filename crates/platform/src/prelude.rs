//! Names that all handlers of requests use: extractors, answers, rights, the database, and those of [`crate::values`].

pub(crate) use axum::http::StatusCode;
pub(crate) use utoipa::IntoParams;

pub(crate) use crate::accounts::caller::{Call, Id, Ids, Member};
pub(crate) use crate::app::App;
pub(crate) use crate::extract::{Body, Import, Params, Unread};
pub(crate) use crate::paging::{self, PageQuery};
pub(crate) use crate::requests::{Edit, Lookup, Single};
pub(crate) use crate::respond::{
    Answer, Conditions, ImportResults, Page, done, done_to, json, open_cursor, open_number,
    open_numbers,
};
pub(crate) use crate::role::{Deed, Role};
pub(crate) use crate::store::{Db, TwinDb};
pub(crate) use crate::values::*;
