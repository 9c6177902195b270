#![doc = include_str!("../README.md")]

mod serve;

pub use fulmar_command::exit::Usage;
pub use fulmar_config::Config;
pub use serve::{Args, Consumer, Message, Server, doctor, has_web_app, run};
#[cfg(feature = "cluster")]
pub use serve::{ClusterArgs, cluster_command};

use fulmar_command::{exit, logging};
