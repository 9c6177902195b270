//! What a reading is, and what becomes of one that is sent.

use crate::meters::{Method, Protection};
use crate::paging::Order;
use crate::values::*;

/// Readings sent at once.
pub(crate) const MAX_READINGS: usize = 1000;

/// A reading that is sent. The server sets the other members of a `Reading`, and ignores them here.
#[derive(Clone, Debug, PartialEq, Deserialize, ToSchema)]
pub(crate) struct NewReading {
    /// Chosen by the sender. A reading that is sent again under the same id is stored once.
    pub(crate) id: Uuid,
    pub(crate) meter: Name,
    /// When it was taken.
    pub(crate) at: Time,
    /// Value of the register.
    pub(crate) value: Amount,
    /// The meter's unit, unless given.
    pub(crate) unit: Option<Text<1, 16>>,
    pub(crate) method: Method,
    /// Photo, sent before or after.
    pub(crate) photo: Option<Uuid>,
    /// Where it was taken.
    pub(crate) place: Option<Place>,
    pub(crate) rssi_dbm: Option<Rssi>,
    pub(crate) note: Option<Note>,
    /// Whether the sender confirmed a value that looks implausible.
    #[serde(default)]
    pub(crate) implausible_confirmed: bool,
    pub(crate) work_list: Option<Uuid>,
    /// The device it was taken with.
    pub(crate) device: Option<Name>,
}

words! {
    /// Something notable about a reading.
    Flag {
        /// Another device read something else for the same work list.
        Conflict = "conflict",
        /// Of two readings in conflict the other was kept.
        Superseded = "superseded",
        /// It was corrected after it came.
        Corrected = "corrected",
        /// It does not count: it was withdrawn.
        Withdrawn = "withdrawn",
        /// Outside the meter's expected range, or more digits than its register has, or negative where that cannot be.
        Implausible = "implausible",
        /// Less than the meter showed before.
        Backwards = "backwards",
        /// The time was more than an hour ahead of the server's clock: it does not count until that is corrected.
        Future = "future",
        /// The meter is not on the work list it names.
        NotOnList = "not_on_list",
        /// It came by radio, and another than the meter may have sent it: it does not count until somebody decides that.
        Unproven = "unproven",
    }
}

words! {
    /// A change of a stored reading.
    Action {
        /// The value or time was corrected.
        Corrected = "corrected",
        /// It was taken back: it no longer counts.
        Withdrawn = "withdrawn",
        /// It counts again.
        Restored = "restored",
        /// Of readings in conflict it was kept.
        Kept = "kept",
        /// Of readings in conflict another was kept.
        Superseded = "superseded",
    }
}

/// The value sent, of a reading that was corrected.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Original {
    pub(crate) value: f64,
    pub(crate) at: Time,
}

/// The last change of a reading.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Change {
    pub(crate) action: Action,
    /// The account that did it.
    pub(crate) by: Name,
    pub(crate) at: Time,
    /// Why; null where a conflict was decided.
    pub(crate) reason: Option<String>,
}

/// An entry of the audit trail: a change of a stored reading.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ReadingChange {
    pub(crate) reading: Uuid,
    pub(crate) meter: Name,
    #[serde(flatten)]
    pub(crate) change: Change,
    /// The reading before.
    pub(crate) before: Original,
    /// The value afterwards.
    pub(crate) after: Original,
}

/// Proof that a reading by radio is its meter's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proof {
    /// `None` if it did not come by radio.
    pub(crate) protection: Option<Protection>,
    /// Why another than the meter may have sent it: then it does not count.
    pub(crate) doubt: Option<&'static str>,
}

/// A reading.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Reading {
    pub(crate) id: Uuid,
    pub(crate) meter: Name,
    pub(crate) at: Time,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) method: Method,
    /// Proof that the meter sent it; null if it did not come by radio, or before the server recorded that.
    pub(crate) protection: Option<Protection>,
    /// Why it is `unproven`.
    pub(crate) doubt: Option<String>,
    pub(crate) photo: Option<Uuid>,
    pub(crate) place: Option<Place>,
    pub(crate) rssi_dbm: Option<f64>,
    pub(crate) note: Option<String>,
    pub(crate) implausible_confirmed: bool,
    pub(crate) work_list: Option<Uuid>,
    /// The account that sent it.
    pub(crate) reader: Name,
    pub(crate) device: Option<Name>,
    /// When the server received it.
    pub(crate) received_at: Time,
    /// Readings it is in conflict with.
    pub(crate) conflict_with: Vec<Uuid>,
    pub(crate) flags: Vec<Flag>,
    /// The value sent, if it has been corrected.
    pub(crate) original: Option<Original>,
    /// Last change, if any.
    pub(crate) changed: Option<Change>,
    /// For If-Match.
    pub(crate) etag: String,
}

page_query! {
    /// Filter of readings.
    ReadingQuery, 1000 {
        meter: Name,
        work_list: Uuid,
        /// Taken at this time or later.
        since: Time,
        /// Taken before this time.
        until: Time,
        method: Method,
        /// Only readings in an unresolved conflict (true), or only the others (false).
        conflict: bool,
        /// Order: `asc`, the oldest, unless given; `desc`, the newest.
        order: Order,
    }
}

/// Result of storing something that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// It is stored.
    Stored,
    /// It was stored before.
    Duplicate,
    /// It is stored, and so is another device's that says something else.
    Conflict,
    /// It is not stored: see the detail.
    Rejected,
}

/// The result for a reading that was sent.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ReadingResult {
    pub(crate) id: Option<String>,
    pub(crate) status: Status,
    /// Why it was rejected, or which it repeats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}
