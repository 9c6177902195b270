//! What a gateway counts.

/// Counters since the server began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages from devices.
    pub received: u64,
    /// Messages sent to devices, repetitions not counted.
    pub sent: u64,
    /// Repetitions to devices that had not answered.
    pub repeated: u64,
    /// Messages for devices that were dropped: for lack of room, or because the device never accepted them.
    pub dropped: u64,
    /// Devices refused a session.
    pub refused: u64,
    /// Datagrams that are not messages.
    pub malformed: u64,
    /// Messages that were not valid in the session's state.
    pub ignored: u64,
}
