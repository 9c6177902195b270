//! The time as a board counts it: milliseconds that wrap. No clock and no calendar.

/// A point in time, in milliseconds since whatever moment the caller chose.
///
/// It wraps after 49.7 days; what is compared must lie less than half of that apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instant(u32);

impl Instant {
    /// `millis` milliseconds after the beginning, modulo 2³².
    pub const fn from_millis(millis: u32) -> Self {
        Self(millis)
    }

    /// Milliseconds since the beginning, modulo 2³².
    pub const fn as_millis(self) -> u32 {
        self.0
    }

    /// `millis` later.
    #[must_use]
    pub const fn after(self, millis: u32) -> Self {
        Self(self.0.wrapping_add(millis))
    }

    /// Number of milliseconds that have passed since `earlier`; 0 if it is not earlier.
    pub const fn since(self, earlier: Self) -> u32 {
        let passed = self.0.wrapping_sub(earlier.0);
        if passed > u32::MAX / 2 { 0 } else { passed }
    }

    /// Whether `deadline` has come.
    pub const fn reached(self, deadline: Self) -> bool {
        self.0.wrapping_sub(deadline.0) <= u32::MAX / 2
    }

    /// The later of two.
    pub(crate) const fn max(self, other: Self) -> Self {
        if self.reached(other) { self } else { other }
    }

    /// The earlier of two.
    pub(crate) const fn min(self, other: Self) -> Self {
        if self.reached(other) { other } else { self }
    }
}
