//! The way of a decision that takes time, from the thread that decides to the connection that waits.

use super::admitted::AuthReply;
use crate::event::BrokerEvent;
use crate::mailbox::{Attachment, Mailboxes};

/// Where a decision that takes time is sent.
pub struct ReplyTo {
    mailboxes: Mailboxes,
    at: Attachment,
}

fulmar_text::opaque_debug!(ReplyTo { at });

impl ReplyTo {
    pub(crate) fn new(mailboxes: Mailboxes, at: Attachment) -> ReplyTo {
        ReplyTo { mailboxes, at }
    }

    /// Sends it.
    pub fn send(self, reply: AuthReply) {
        self.mailboxes.post(self.at, BrokerEvent::Authenticated(reply));
    }
}
