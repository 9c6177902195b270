#![doc = include_str!("../README.md")]

#[cfg(feature = "platform")]
pub mod accounts;
#[cfg(feature = "platform")]
mod broker_users;
#[cfg(all(feature = "platform", feature = "admin"))]
mod node_users;
pub mod passwd;
mod serve;

pub use fulmar_command::exit::Usage;
pub use fulmar_config::Config;
pub use serve::{Args, Consumer, Message, Server, doctor, has_web_app, run};
#[cfg(feature = "cluster")]
pub use serve::{ClusterArgs, cluster_command};

use fulmar_command::{exit, logging};
