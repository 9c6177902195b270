//! What the office asks: use over time, how far the work is, what was missed, what may leak, and tables
//! of readings to take away.
//!
//! `consumption` and `leaks` judge readings and know neither database nor clock; `handlers` asks the
//! database for them; `export` writes tables.

pub(crate) mod consumption;
pub(crate) mod export;
pub(crate) mod handlers;
pub(crate) mod leaks;

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::meters::Meter;
use crate::text::Name;
use crate::time::Time;
use crate::work_lists::types::{ListState, TaskState};

/// Value of a register at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) at: Time,
    pub(crate) value: f64,
}

/// The work list that missed a meter.
#[derive(Serialize, ToSchema)]
pub(crate) struct MissedBy {
    pub(crate) id: Uuid,
    pub(crate) name: String,
    pub(crate) assignee: Option<Name>,
    pub(crate) state: ListState,
    pub(crate) due: Option<Time>,
}

/// A meter that was missed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Missed {
    pub(crate) meter: Meter,
    pub(crate) work_list: MissedBy,
    /// State on the work list: open, or unreachable.
    pub(crate) state: TaskState,
    pub(crate) note: Option<String>,
}

/// Overall progress of all work lists.
#[derive(Serialize, ToSchema)]
pub(crate) struct Overall {
    pub(crate) work_lists: u64,
    /// Meters on them.
    pub(crate) total: u64,
    /// Number of these that were read.
    pub(crate) done: u64,
    pub(crate) unreachable: u64,
    pub(crate) open: u64,
}
