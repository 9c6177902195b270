//! Names that all code about values uses: text, numbers and times from outside, and how they are serialized.

pub(crate) use serde::{Deserialize, Serialize};
pub(crate) use utoipa::ToSchema;
pub(crate) use uuid::Uuid;

pub(crate) use crate::extract::{Each, at_most, given};
pub(crate) use crate::number::{Amount, Bounded, Bounds, Place, Rssi};
pub(crate) use crate::paging::page_query;
pub(crate) use crate::problem::{Problem, Result, internal};
pub(crate) use crate::text::{Line, Name, Note, Text, Title, checked_text, strings, words};
pub(crate) use crate::time::{DAY_MS, HOUR_MS, SECOND_MS, Time};
