//! After a pause of the process or the machine (SIGSTOP, a freezer, a suspended virtual machine): what clients have sent
//! meanwhile is read only now, or still arrives, so their silence is not theirs.

use std::time::Duration;

use fulmar_auth::Timestamp;

use super::{Connection, State};
use crate::shard::Shard;

/// Deadlines of an event loop that is found this late were missed in a pause.
const LATE: Duration = Duration::from_millis(250);
/// Time for the program's other threads, which were paused as well, to pass on what they have.
const MIN_GRACE: Duration = Duration::from_secs(5);
/// TCP repeats what was not acknowledged after about as long again as that has lasted.
const MAX_GRACE: Duration = Duration::from_secs(60);

/// Returns how much longer to wait for a peer, if its deadline is found so late that there was a pause.
#[must_use]
pub fn grace_after_pause(late: Duration) -> Option<Duration> {
    (late > LATE).then(|| late.clamp(MIN_GRACE, MAX_GRACE))
}

impl Connection {
    /// Waits longer for the client's next packet, if the deadline for it was missed in a pause. Call this before
    /// [`Connection::on_deadline`], after everything that has come was read.
    pub fn excuse_pause(&mut self, shard: &Shard) {
        let now = shard.now();
        let Some(grace) = grace_after_pause(now.since(self.deadline(shard))) else { return };
        let passed = |allowed: Duration| {
            let allowed = Timestamp(0) + allowed;
            Timestamp((now + grace).0.saturating_sub(allowed.0))
        };
        match &self.state {
            State::Connected(_) if self.silent_at() <= now => {
                self.last_input = passed(self.allowed_silence().unwrap_or_default());
            }
            State::New | State::Authenticating(_) | State::Challenged(_)
                if self.late_refusal().is_none() =>
            {
                self.opened = passed(shard.broker().limits().connect_timeout);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_deadline_is_a_pause() {
        let seconds = Duration::from_secs;
        assert_eq!(grace_after_pause(Duration::from_millis(100)), None, "a busy machine");
        assert_eq!(grace_after_pause(seconds(1)), Some(seconds(5)));
        assert_eq!(grace_after_pause(seconds(20)), Some(seconds(20)));
        assert_eq!(grace_after_pause(seconds(9000)), Some(seconds(60)));
    }
}
