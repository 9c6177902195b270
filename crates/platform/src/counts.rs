//! What the platform counts since it was opened, for the operator's metrics.

use parking_lot::Mutex;

use crate::frames::types::FrameResult;
use crate::measurements::types::{MeasurementResult, MeasurementStatus};

/// Objects that are counted.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<PlatformCounts>);

/// Counts of the platform since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlatformCounts {
    /// Measurements stored.
    pub measurements_stored: u64,
    /// Measurements that were stored before.
    pub measurements_duplicate: u64,
    /// Measurements that could not be taken.
    pub measurements_rejected: u64,
    /// MQTT messages on sensors' topics that were none.
    pub messages_malformed: u64,
    /// Frames of known meters, or of none, that became no reading and were not received before.
    pub frames_refused: u64,
    /// Bytes of photos.
    pub photo_bytes: u64,
    /// Greatest number of them.
    pub photo_limit_bytes: u64,
    /// Photos for which there was no space.
    pub photos_refused: u64,
}

impl Counts {
    /// Counts what became of measurements.
    pub(crate) fn took(&self, results: &[MeasurementResult]) {
        let count = |status| results.iter().filter(|result| result.status == status).count() as u64;
        let mut counts = self.0.lock();
        counts.measurements_stored += count(MeasurementStatus::Stored);
        counts.measurements_duplicate += count(MeasurementStatus::Duplicate);
        counts.measurements_rejected += count(MeasurementStatus::Rejected);
    }

    /// Counts fields of messages that could not be used.
    pub(crate) fn unusable(&self, fields: usize) {
        self.0.lock().measurements_rejected += fields as u64;
    }

    /// Counts frames that became no reading.
    pub(crate) fn frames(&self, results: &[FrameResult]) {
        self.frames_refused(results.iter().filter(|result| result.status.is_refusal()).count());
    }

    /// Counts frames that were refused at once.
    pub(crate) fn frames_refused(&self, frames: usize) {
        self.0.lock().frames_refused += frames as u64;
    }

    /// Counts a message that was no measurement.
    pub(crate) fn malformed(&self) {
        self.0.lock().messages_malformed += 1;
    }

    pub(crate) fn get(&self) -> PlatformCounts {
        *self.0.lock()
    }
}
