//! Fuzz targets of `fulmar-server`: what it parses itself of what clients and the operator's web service send.
//!
//! The parsers are compiled in as source files: they are not public, and the rest of the crate (all parts of the server)
//! would take minutes to build with counters.

#[allow(unreachable_pub, reason = "a part of another crate")]
#[path = "../../../auth-http/src/answer.rs"]
mod answer;
mod auth_answer;
/// The path under which the source finds the rules of the configuration.
#[allow(dead_code, unreachable_pub, reason = "a part of another crate")]
#[path = "../../../config/src"]
mod config {
    mod acl_rule;

    pub(crate) use acl_rule::AclRule;
}
// Under this name, the source finds them, too.
extern crate self as fulmar_config;
#[allow(unused_imports, reason = "for the source")]
pub(crate) use config::AclRule;
#[allow(unreachable_pub, reason = "a part of another crate")]
#[path = "../../../telemetry/src/context.rs"]
mod context;
mod credentials;
#[allow(unreachable_pub, reason = "a part of another crate")]
#[path = "../../src/serve/http_credentials.rs"]
mod http_credentials;
mod traceparent;

pub use auth_answer::auth_answer;
pub use credentials::credentials;
pub use traceparent::traceparent;
