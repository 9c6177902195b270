//! What the platform counts since it was opened, for the operator's metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::frames::types::FrameResult;
use crate::measurements::types::{MeasurementResult, MeasurementStatus};

/// Objects that are counted.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    stored: AtomicU64,
    duplicate: AtomicU64,
    rejected: AtomicU64,
    malformed: AtomicU64,
    frames_refused: AtomicU64,
}

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
        self.stored.fetch_add(count(MeasurementStatus::Stored), Ordering::Relaxed);
        self.duplicate.fetch_add(count(MeasurementStatus::Duplicate), Ordering::Relaxed);
        self.rejected.fetch_add(count(MeasurementStatus::Rejected), Ordering::Relaxed);
    }

    /// Counts fields of messages that could not be used.
    pub(crate) fn unusable(&self, fields: usize) {
        self.rejected.fetch_add(fields as u64, Ordering::Relaxed);
    }

    /// Counts frames that became no reading.
    pub(crate) fn frames(&self, results: &[FrameResult]) {
        self.frames_refused(results.iter().filter(|result| result.status.is_refusal()).count());
    }

    /// Counts frames that were refused at once.
    pub(crate) fn frames_refused(&self, frames: usize) {
        self.frames_refused.fetch_add(frames as u64, Ordering::Relaxed);
    }

    /// Counts a message that was no measurement.
    pub(crate) fn malformed(&self) {
        self.malformed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> PlatformCounts {
        PlatformCounts {
            measurements_stored: self.stored.load(Ordering::Relaxed),
            measurements_duplicate: self.duplicate.load(Ordering::Relaxed),
            measurements_rejected: self.rejected.load(Ordering::Relaxed),
            messages_malformed: self.malformed.load(Ordering::Relaxed),
            frames_refused: self.frames_refused.load(Ordering::Relaxed),
            ..PlatformCounts::default()
        }
    }
}
