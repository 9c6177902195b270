//! The real store on a bad disk, without a broker.
#![allow(clippy::unwrap_used)]

mod backup;
mod crashes;
mod damage;
mod folder;
mod upgrade;
