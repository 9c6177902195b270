//! Fuzz target of `fulmar-admin`: what it reads of a request's head before it knows who sent it, and the queries of lists.
//!
//! The parsers are compiled in as source files: they are not public, and the rest of the crate (the broker, SQLite) would
//! take minutes to build with counters.

#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/administrators.rs"]
mod administrators;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/page.rs"]
mod page;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/problem.rs"]
mod problem;
mod request;
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/web_sessions.rs"]
mod web_sessions;

/// What handlers share; no query needs it.
mod app {
    pub(crate) struct App;
}

pub use request::request;
