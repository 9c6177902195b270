//! Frames as they come, and what became of them.

use crate::values::*;

/// A frame that a receiver received.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct NewFrame {
    /// The link frame in hexadecimal, from its length field on, in which checksums may be; or a receiver's line, such as
    /// one of rtl_wmbus or rtl_433 (JSON).
    pub(crate) hex: Text<2, 2048>,
    /// The radio mode, such as `T1`.
    pub(crate) mode: Option<Text<0, 16>>,
    /// When it was received.
    pub(crate) at: Time,
    pub(crate) rssi_dbm: Option<Rssi>,
    /// Where the receiver was.
    pub(crate) place: Option<Place>,
}

/// The result for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FrameStatus {
    /// The reading is stored.
    Stored,
    /// It came before, from another receiver or in another upload.
    Duplicate,
    /// It was sent before and was replayed by another sender than the meter.
    Replayed,
    /// It does not count, and the meter has too many such readings of this day to store another.
    Unproven,
    /// It does not decrypt under the meter's key, or its authentication code is wrong.
    WrongKey,
    /// It is encrypted, and the server has no key of the meter.
    NoKey,
    /// The twin has no such meter.
    UnknownMeter,
    /// It is cut, damaged, or nothing a reading can be taken from.
    Malformed,
}

impl FrameStatus {
    /// Whether something is wrong; what was received before, or is a stranger's meter, is usual.
    pub(crate) fn is_refusal(self) -> bool {
        !matches!(self, Self::Stored | Self::Duplicate | Self::UnknownMeter)
    }
}

/// The result for a frame.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct FrameResult {
    pub(crate) status: FrameStatus,
    /// Whose it is.
    pub(crate) meter: Option<Name>,
    /// The reading it became.
    pub(crate) reading: Option<Uuid>,
    /// The fault of the frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) detail: Option<String>,
}

/// That a meter's frame was received, without its content.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FrameReceipt {
    pub(crate) meter: Name,
    pub(crate) address: String,
    pub(crate) manufacturer: String,
    pub(crate) medium: crate::meters::Medium,
    pub(crate) at: Time,
    pub(crate) rssi_dbm: Option<f64>,
    pub(crate) place: Option<Place>,
    pub(crate) mode: Option<Text<0, 16>>,
    pub(crate) receiver: Name,
}
