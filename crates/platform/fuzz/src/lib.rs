//! Fuzz targets of `fulmar-platform`: requests and messages as they become types.
//!
//! The types are compiled in as source files: they are not public, and the rest of the crate (handlers, databases) would
//! take minutes to build with counters. Each target says what holds of everything that is accepted.

mod body;
mod measurement;
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    clippy::pedantic,
    reason = "a part of another crate"
)]
#[path = "../../src"]
mod platform {
    pub(crate) mod accounts {
        pub(crate) mod token;
    }
    pub(crate) mod error;
    pub(crate) mod extract;
    pub(crate) mod frames {
        pub(crate) mod types;
    }
    pub(crate) mod in_hand;
    pub(crate) mod log_limit;
    pub(crate) mod measurements {
        pub(crate) mod message;
        pub(crate) mod types;

        pub(crate) use types::{NewMeasurement, Quantity};
    }
    pub(crate) mod meters {
        pub(crate) mod types;

        pub(crate) use types::{Medium, Method, NewMeter, Protection, RadioAddress};
    }
    pub(crate) mod number;
    pub(crate) mod paging;
    pub(crate) mod problem;
    pub(crate) mod readings {
        pub(crate) mod types;
    }
    pub(crate) mod respond;
    pub(crate) mod store {
        pub(crate) mod sql {
            mod error;
            mod value;

            pub(crate) use error::{DatabaseError, Result};
            pub(crate) use value::{FromSql, Mismatch, ToSql, Value, stored_as};
        }
    }
    pub(crate) mod text;
    pub(crate) mod time;
    pub(crate) mod values;
}
#[path = "text.rs"]
mod texts;

// The paths under which the sources find each other.
use platform::{
    accounts, error, extract, frames, in_hand, log_limit, measurements, meters, number, paging,
    problem, readings, respond, store, text, time, values,
};

pub use body::body;
pub use measurement::measurement;
pub use texts::text;
