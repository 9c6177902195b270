//! Problems (RFC 9457) of what goes wrong inside. Internal errors are logged, and their details are not sent.

pub(crate) use fulmar_http::Problem;

use crate::log_limit::LogLimit;
use crate::store::sql::DatabaseError;

/// Result of what was asked for.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

/// When to try again while the disk is full.
const FULL_RETRY_S: u64 = 60;

/// Something went wrong that should not; `why` goes to the log only.
pub(crate) fn internal(why: &dyn std::fmt::Display) -> Problem {
    tracing::error!("platform: {why}");
    Problem::internal()
}

/// Why one of several things that were sent together is not stored.
pub(crate) enum Unstored<R> {
    /// Nothing else is wrong, and this is the result of the one.
    Refused(R),
    /// None of them can be stored now.
    Failed(Problem),
}

impl<R> Unstored<R> {
    /// The result of one that was refused.
    pub(crate) fn result(self) -> Result<R> {
        match self {
            Unstored::Refused(result) => Ok(result),
            Unstored::Failed(problem) => Err(problem),
        }
    }
}

impl<R, E: Into<Problem>> From<E> for Unstored<R> {
    fn from(error: E) -> Unstored<R> {
        Unstored::Failed(error.into())
    }
}

impl From<DatabaseError> for Problem {
    fn from(error: DatabaseError) -> Problem {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull};
        match &error {
            DatabaseError::ZeroCharacter => Problem::malformed(error.to_string()),
            DatabaseError::Sqlite(sqlite) => match sqlite.sqlite_error_code() {
                Some(DiskFull) => {
                    static LOG: LogLimit = LogLimit::new();
                    if let Some(times) = LOG.occurred(std::time::Instant::now()) {
                        tracing::error!(
                            times,
                            "platform storage: the disk, or account \"platform\" of \
                            [limits] disk, is full"
                        );
                    }
                    Problem::no_space("the server's disk is full; nothing was stored")
                        .retry_after(FULL_RETRY_S)
                }
                Some(DatabaseBusy | DatabaseLocked) => {
                    Problem::unavailable("the server is busy; nothing was stored")
                }
                _ => internal(&format_args!("storage: {error}")),
            },
            // The code that lost the connection has logged that.
            DatabaseError::Away(..) => Problem::unavailable(
                "the server's database cannot be reached; nothing was acknowledged: send it again \
                 later",
            ),
            DatabaseError::Taken => {
                tracing::error!("platform storage: {error}");
                Problem::unavailable("the server's database is used by another server")
            }
            DatabaseError::NotShared(why) => Problem::unavailable(why.to_string()),
            DatabaseError::Postgres { state, .. } if is_passing(state) => {
                tracing::error!("platform storage: {error}");
                Problem::unavailable("the server's database cannot do this now; nothing was stored")
            }
            _ => internal(&format_args!("storage: {error}")),
        }
    }
}

/// Whether PostgreSQL may do it another time (its manual, appendix A): it lacks connections, space or memory,
/// somebody ended it or the wait for a lock, transactions met, or it only reads.
fn is_passing(state: &str) -> bool {
    ["08", "40", "53", "55", "57", "58"].contains(&state.get(..2).unwrap_or_default())
        || state == "25006"
}
