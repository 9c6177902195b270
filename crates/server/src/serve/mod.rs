//! The server: its parts, and what connects them (`server`); and the command that runs one in a process of its own
//! (`command`).

#[cfg(feature = "admin")]
mod admin;
#[cfg(feature = "admin")]
mod backup;
pub(crate) mod check;
#[cfg(feature = "cluster")]
mod cluster;
mod command;
pub mod doctor;
mod first_administrator;
mod http;
mod http_credentials;
mod http_publish;
mod identities;
mod landing_page;
mod listeners;
mod memory;
mod notify;
mod page_config;
mod pages;
mod parts;
#[cfg(feature = "platform")]
mod platform;
mod replaced_hashes;
mod revocation;
mod secrets;
mod server;
mod status;
mod stored;

#[cfg(feature = "cluster")]
pub use cluster::{ClusterArgs, cluster_command};
pub use command::{Args, run};
pub use fulmar_part::consumer::{Consumer, Message};
pub use pages::has_web_app;
pub use server::Server;

/// Certificates of earlier orders: a build that would not renew them does not use them.
#[cfg(feature = "acme")]
const ORDERED: Option<fulmar_part::certificates::Ordered> = Some(fulmar_acme::kept);
#[cfg(not(feature = "acme"))]
const ORDERED: Option<fulmar_part::certificates::Ordered> = None;
