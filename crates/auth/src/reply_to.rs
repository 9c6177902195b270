//! The way of a decision that takes time, from the thread that decides to the connection that waits.

use crate::admitted::AuthReply;

/// The receiver of a decision that takes time.
pub struct ReplyTo(Box<dyn FnOnce(AuthReply) + Send>);

fulmar_text::opaque_debug!(ReplyTo);

impl ReplyTo {
    /// Gives the decision to `send`, on the thread that has made it.
    pub fn new(send: impl FnOnce(AuthReply) + Send + 'static) -> ReplyTo {
        ReplyTo(Box::new(send))
    }

    /// Sends the decision.
    pub fn send(self, reply: AuthReply) {
        (self.0)(reply);
    }
}
