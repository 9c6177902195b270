//! What a work list is.

use crate::store::sql::{FromSql, Mismatch, ToSql, Value};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::meters::Meter;
use crate::meters::types::words;
use crate::readings::Reading;
use crate::text::Name;
use crate::time::Time;

words! {
    /// Whether there is work left.
    ListState {
        /// There is.
        Open = "open",
        /// There is not, or no more is wanted.
        Done = "done",
    }
}

words! {
    /// What became of a meter on a work list.
    TaskState {
        /// Nothing yet.
        Open = "open",
        /// There is a reading.
        Read = "read",
        /// Nobody could get to it.
        Unreachable = "unreachable",
    }
}

/// A work list.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct WorkList {
    pub(crate) id: Uuid,
    pub(crate) name: String,
    /// The user to whom it is assigned; null for any user.
    pub(crate) assignee: Option<Name>,
    pub(crate) state: ListState,
    pub(crate) due: Option<Time>,
    pub(crate) created_at: Time,
    /// How many meters are on it.
    pub(crate) total: u64,
    /// How many of them have been read.
    pub(crate) done: u64,
    /// The number of meters that could not be reached.
    pub(crate) unreachable: u64,
    /// For If-Match.
    pub(crate) etag: String,
}

/// A task's meter.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum TaskMeter {
    /// All of it.
    Whole(Box<Meter>),
    /// With `meters=false`.
    Id(MeterId),
}

/// A meter's id alone.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeterId {
    pub(crate) id: Name,
}

/// A meter on a work list.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Task {
    pub(crate) meter: TaskMeter,
    pub(crate) state: TaskState,
    /// The newest reading for this list.
    pub(crate) reading: Option<Reading>,
    pub(crate) note: Option<String>,
}

/// A work list with its meters.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FullWorkList {
    #[serde(flatten)]
    pub(crate) list: WorkList,
    /// In the order in which they were put on it.
    pub(crate) tasks: Vec<Task>,
}
