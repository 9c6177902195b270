//! What property tests and fuzz targets share: naive models beside which the machines run, driven by
//! bytes, so that proptest and libFuzzer can both drive them. All panic at the first disagreement.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each of those that include this uses a part of it, and it is no library's interface"
)]

pub mod link;
pub mod model;
pub mod script;
pub mod topics;
