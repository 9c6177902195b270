//! Why the store of identities does not make a change, as the API and the command line say it.

use fulmar_identity::{ApplyError, Refused, StoreError};

use crate::error::Error;
use crate::problem::{Problem, internal};
use crate::store::sql::DatabaseError;

/// Why a change of accounts is refused.
pub(crate) fn refused(error: ApplyError) -> Problem {
    match error {
        ApplyError::Refused(Refused::AccountNotFound) => Problem::missing("user"),
        ApplyError::Refused(Refused::DeviceTokenNotFound) => Problem::missing("token of this user"),
        ApplyError::Refused(refused) => Problem::conflict(refused.to_string()),
        ApplyError::Busy | ApplyError::NotShared(_) => Problem::unavailable(error.to_string()),
        ApplyError::Store(StoreError::Sqlite { source, .. }) => DatabaseError::from(source).into(),
        ApplyError::Store(error) => internal(&error),
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        Error::Refused(error.to_string())
    }
}
