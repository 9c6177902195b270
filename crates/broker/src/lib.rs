//! The broker core: routing, sessions and durable state.
//!
//! No sockets, no clock and no threads: the caller (the `fulmar-transport` crate)
//! passes in the bytes of ordered streams and the time, and gets bytes and deadlines. A message's path through the
//! modules: [`connection`](Connection) → `publish` → `route` (`tree`) → `deliver` (`session`) → the receivers'
//! connections. Durable changes go to [`storage`] in batches, and their acknowledgements wait until they are durable.
//!
//! Each module uses only those below it. From the bottom: data and its limits; a session (`session`) and the
//! subscription tree (`tree`); what all workers share (`broker`), what one turn of a worker collects (`turn`), and a
//! worker (`shard`); what is done with sessions (`deliver`, `subscribe`, `flows`, `lifecycle`, `publish`); `restore`,
//! `housekeeping` and `event_loop`; the connections.
#![forbid(unsafe_code)]

mod administration;
mod aliases;
mod back_pressure;
mod bans;
mod broker;
mod bucket;
mod client_acks;
mod client_list;
mod connection;
pub mod control;
mod deadlines;
mod deferred_ops;
mod deliver;
mod event;
mod event_loop;
mod explain;
mod fan_out;
mod flows;
mod housekeeping;
mod jobs;
mod lifecycle;
mod limits;
mod log_limiter;
mod mailbox;
mod memory;
mod memory_pressure;
pub mod message;
mod message_order;
pub mod metrics;
mod obstacles;
mod outbox;
mod owner;
mod peer;
mod publication;
mod publish;
mod publish_hook;
mod queue;
mod quota;
mod rate_limiter;
mod read;
mod redirect;
mod registry;
mod restore;
mod retained;
mod route;
mod send_line;
mod session;
mod session_memory;
mod shard;
mod shared_groups;
mod stall;
pub mod storage;
mod subscribe;
mod subscribers;
mod sys;
mod test_hook;
mod traced;
mod tracer;
mod transports;
mod tree;
mod turn;
mod waiting;
mod will;

pub use administration::{
    FlowSummary, NotDeleted, SessionDetails, SessionSummary, SubscriptionSummary,
};
pub use bans::{Ban, Banned, MAX_BANS};
pub use broker::{Broker, BrokerConfig};
pub use connection::{
    Closing, Connection, LostCause, Output, ReadState, Received, Refused, StreamAction, StreamEnd,
    grace_after_pause,
};
pub use event::{BrokerEvent, CloseOrder};
pub use explain::Explanation;
pub use fulmar_auth::{
    self as auth, Because, MAX_USER_NAME_BYTES, PeerCertificate, PeerIdentity, SessionOwner,
    Timestamp, User, UserNameError, Vouched, access,
};
pub use limits::{DropPolicy, Limits, RatePolicy};
pub use log_limiter::LogLimiter;
pub use memory::{Account, MemoryLimits, MemoryShare};
pub use memory_pressure::{MemoryGauge, MemoryPressure};
pub use obstacles::Obstacle;
pub use peer::{ListenerPolicy, Peer, StreamKey, Token, TransportKind, TransportStats, Via};
pub use publish_hook::{Arrival, PublishHook};
pub use read::{Denied, Readable, Reader};
pub use redirect::Redirect;
pub use shard::Shard;
pub use tracer::{Delivered, TraceNumber, Tracer};
pub use transports::{ClientConnection, ClientStatistics};
pub use waiting::{WaitCause, Waiting};
