//! The decision about a login, or that it comes later.

use crate::admitted::AuthReply;

/// The decision about a login, or that it comes later.
#[derive(Debug)]
pub enum Decision {
    /// Whether it is accepted.
    Now(AuthReply),
    /// That comes as an event, if this is kept until then.
    Later(WaitingLogin),
}

/// A login that waits to be checked; dropping it takes it out of its queue.
pub struct WaitingLogin(Box<dyn Fn() + Send + Sync>);

impl WaitingLogin {
    /// `leave` takes the login out of its queue, unless it is checked already.
    pub fn new(leave: impl Fn() + Send + Sync + 'static) -> WaitingLogin {
        WaitingLogin(Box::new(leave))
    }
}

fulmar_text::opaque_debug!(WaitingLogin);

impl Drop for WaitingLogin {
    fn drop(&mut self) {
        (self.0)();
    }
}
