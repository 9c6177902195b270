//! What a gateway counts.

/// What has been counted since the server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages devices published.
    pub received: u64,
    /// Messages sent to devices, repetitions not counted.
    pub sent: u64,
    /// Times something was sent again to a device that had not answered.
    pub repeated: u64,
    /// Messages for devices that were dropped: without room, or never understood.
    pub dropped: u64,
    /// Devices refused a session.
    pub refused: u64,
    /// Datagrams that are no messages.
    pub malformed: u64,
    /// Messages that made no sense where they came.
    pub ignored: u64,
}
