//! Requests that clients publish to change the identity store, as mosquitto's dynamic security defines them.
//!
//! The rules of the identity store decide who may publish them. They are not delivered to anybody: another part of the
//! program gets them ([`Control`]) and answers on its own thread. Only the client that has asked gets the answer, on a
//! topic to which it has to be subscribed.

use std::fmt;
use std::net::IpAddr;

use crate::event::BrokerEvent;
use crate::mailbox::{Attachment, Mailboxes};

/// Where requests are published.
pub const CONTROL_TOPIC: &str = "$CONTROL/dynamic-security/v1";

/// Where a client gets the answers.
pub const RESPONSE_TOPIC: &str = "$CONTROL/dynamic-security/v1/response";

/// A request.
#[derive(Debug)]
pub struct ControlRequest<'a> {
    /// The request as it was published; it may contain passwords.
    pub payload: &'a [u8],
    /// The client that asks.
    pub client_id: &'a str,
    /// User.
    pub username: Option<&'a str>,
    /// Address.
    pub from: IpAddr,
    /// Where the answer is sent.
    pub reply_to: ControlReply,
}

/// The part of the program that handles requests.
pub trait Control: Send + Sync + fmt::Debug {
    /// Takes a request, and answers later. Called on a worker.
    fn request(&self, request: ControlRequest<'_>);
}

/// Where an answer is sent.
pub struct ControlReply {
    mailboxes: Mailboxes,
    at: Attachment,
}

fulmar_text::opaque_debug!(ControlReply { at });

impl ControlReply {
    pub(crate) fn new(mailboxes: Mailboxes, at: Attachment) -> ControlReply {
        ControlReply { mailboxes, at }
    }

    /// Sends it, if the client is still connected and subscribed.
    pub fn send(self, payload: Box<[u8]>) {
        self.mailboxes.post(self.at, BrokerEvent::ControlResponse(payload));
    }
}
