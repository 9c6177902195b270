//! The lab: bad links on one machine, experiments over them, and reports of what was measured.
//!
//! An experiment is one TOML file ([`experiment`]): hosts, links, roles (programs), conditions and
//! measures. [`run`] carries it out cell by cell and keeps every raw sample. What joins the hosts is behind [`network::Fabric`], so that the
//! runner neither knows nor cares whether packets cross an emulated link.
//!
//! Not here: MQTT. Roles are programs, ours or anybody's.

pub mod experiment;
pub mod network;
pub mod run;
pub mod stats;
