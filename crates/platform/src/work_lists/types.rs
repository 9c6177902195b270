//! What a work list is.

use crate::meters::Meter;
use crate::readings::types::{MAX_READINGS, NewReading, Reading};
use crate::values::*;

/// Meters of a list.
pub(crate) const MAX_TASKS: usize = 5000;

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
    /// State of a meter on a work list.
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
    /// Number of meters on it.
    pub(crate) total: u64,
    /// Number of them that have been read.
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

page_query! {
    /// Filter of lists.
    ListQuery, 1000 {
        assignee: Name,
        state: ListState,
    }
}

/// A new work list.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewWorkList {
    pub(crate) name: Title,
    pub(crate) assignee: Option<Name>,
    pub(crate) due: Option<Time>,
    #[serde(deserialize_with = "at_most::<MAX_TASKS, _, _>")]
    #[schema(max_items = 5000)]
    pub(crate) meters: Vec<Name>,
}

/// Changes of a work list, readings for it, and results for meters that were not read.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkListChange {
    pub(crate) name: Option<Title>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Name>)]
    pub(crate) assignee: Option<Option<Name>>,
    pub(crate) state: Option<ListState>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Time>)]
    pub(crate) due: Option<Option<Time>>,
    /// Readings for this list; each has an outcome of its own.
    #[serde(default, deserialize_with = "at_most::<MAX_READINGS, _, _>")]
    #[schema(value_type = Vec<NewReading>, required = false, max_items = 1000)]
    pub(crate) readings: Vec<Each<NewReading>>,
    /// Results for meters that were not read.
    #[serde(default, deserialize_with = "at_most::<MAX_READINGS, _, _>")]
    #[schema(required = false, max_items = 1000)]
    pub(crate) tasks: Vec<TaskChange>,
}

/// The result for a meter that was not read.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskChange {
    pub(crate) meter: Name,
    pub(crate) state: Option<TaskState>,
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<Note>)]
    pub(crate) note: Option<Option<Note>>,
}
