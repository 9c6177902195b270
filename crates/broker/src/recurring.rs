//! A trouble that may come a thousand times a second: it is told at once, and then once a while with
//! how often it came, so that the log shows it and is not filled by it.

use std::time::Duration;

use crate::time::Timestamp;

/// Time between two lines about the same trouble.
const QUIET: Duration = Duration::from_secs(30);

/// How often a trouble came since it was told last.
#[derive(Debug, Default)]
pub struct Recurring {
    untold: u64,
    quiet_until: Timestamp,
}

impl Recurring {
    /// It has come again. How often since it was told last, if that is to be told now.
    pub fn again(&mut self, now: Timestamp) -> Option<u64> {
        self.untold += 1;
        if now < self.quiet_until {
            return None;
        }
        self.quiet_until = now + QUIET;
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_at_once_and_then_with_its_count() {
        let mut trouble = Recurring::default();
        let start = Timestamp(1_000);
        assert_eq!(trouble.again(start), Some(1));
        for ms in 1..30_000 {
            assert_eq!(trouble.again(Timestamp(start.0 + ms)), None);
        }
        assert_eq!(trouble.again(start + QUIET), Some(30_000));
        assert_eq!(trouble.again(start + QUIET), None);
        assert_eq!(trouble.again(start + 3 * QUIET), Some(2));
    }
}
