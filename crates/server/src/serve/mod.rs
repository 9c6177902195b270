//! The server: its parts, and what connects them (`server`); and the command that runs one in a process of its own
//! (`command`).

#[cfg(feature = "acme")]
mod acme;
#[cfg(feature = "admin")]
mod admin;
mod auth_http;
#[cfg(feature = "admin")]
mod backup;
mod certificates;
pub(crate) mod check;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg_attr(
    not(all(feature = "cluster", feature = "admin")),
    allow(dead_code, reason = "nothing shows it")
)]
mod cluster_status;
mod coap;
mod command;
mod consumer;
pub mod doctor;
mod first_administrator;
mod gateway;
mod http;
mod http_credentials;
mod http_publish;
mod identities;
mod internal_sessions;
mod landing_page;
mod listeners;
mod local_client;
mod memory;
mod mqttsn;
mod notify;
mod otlp;
mod page_config;
mod pages;
#[cfg_attr(
    not(all(feature = "acme", feature = "admin", feature = "platform")),
    allow(dead_code, reason = "for parts that are not in this build")
)]
mod part;
mod parts;
#[cfg(feature = "platform")]
mod platform;
mod psk;
mod replaced_hashes;
mod revocation;
mod secrets;
mod server;
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "nothing is shared"))]
mod shared_rows;
mod status;
mod stored;
mod timed_connector;
mod udp;
mod webtransport_certificate;

#[cfg(feature = "cluster")]
pub use cluster::{ClusterArgs, cluster_command};
pub use command::{Args, run};
pub use consumer::{Consumer, Message};
pub use pages::has_web_app;
pub use server::Server;
