//! What the office asks: use over time, how far the work is, what was missed, what may leak, and tables
//! of readings to take away.
//!
//! `consumption` and `leaks` judge readings and know neither database nor clock; `handlers` asks the
//! database for them; `export` writes tables.

pub(crate) mod consumption;
pub(crate) mod export;
pub(crate) mod handlers;
pub(crate) mod leaks;

use crate::meters::Meter;
use crate::values::*;
use crate::work_lists::types::{ListState, TaskState, WorkList};

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

/// Progress of a work list.
#[derive(Serialize, ToSchema)]
pub(crate) struct Progress {
    #[serde(flatten)]
    pub(crate) list: WorkList,
    /// Number of its meters that have not been visited.
    pub(crate) open: u64,
    /// Number of its meters that were missed: the list is closed, and there is no reading since it was created.
    pub(crate) missed: u64,
    /// Number of its meters whose readings contradict each other.
    pub(crate) conflicts: u64,
    /// When the newest of its readings was taken.
    pub(crate) last_reading_at: Option<Time>,
}

/// A meter whose flow does not pause.
#[derive(Serialize, ToSchema)]
pub(crate) struct Leak {
    pub(crate) meter: Meter,
    /// It has not paused since then, or longer.
    pub(crate) since: Time,
    /// The least flow in any hour or so of the last day, in the meter's unit an hour.
    pub(crate) least_per_hour: Option<f64>,
}
