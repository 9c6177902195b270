//! A client's errors, with what to try next.

use fulmar_mqtt::ReasonCode;
use fulmar_mqtt::topic::TopicError;

/// Why something failed. Cheap to clone, because one failure may have several recipients.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The URL is not one of a broker.
    #[error("{url:?}: {reason}; write SCHEME://HOST[:PORT] with mqtt, mqtts, quic, ws or wss")]
    Url {
        /// The URL as given.
        url: String,
        /// Fault in it.
        reason: &'static str,
    },
    /// Options that cannot be used together or files that cannot be read.
    #[error("{0}")]
    Options(String),
    /// No connection.
    #[error("cannot connect to {url}: {reason}")]
    Dial {
        /// Where to.
        url: String,
        /// Why not, and what to try.
        reason: String,
    },
    /// The server did not accept CONNECT.
    #[error("{url} refused the connection: {}{detail}", in_words(*reason))]
    Refused {
        /// Address of the server.
        url: String,
        /// Reason code of the server's answer.
        reason: ReasonCode,
        /// The server's own words, if any, after a colon.
        detail: String,
    },
    /// No connection to any address of a list.
    #[error("none of {tried} addresses can be used; the last: {last}")]
    NoAddress {
        /// Number of addresses tried.
        tried: usize,
        /// Error at the last one.
        last: Box<Error>,
    },
    /// SCRAM has failed on this side, such as because the server has not shown who it is.
    #[error("SCRAM: {0}")]
    SignIn(String),
    /// The server ended the connection with a reason.
    #[error("the server ended the connection: {}", in_words(*.0))]
    Disconnected(ReasonCode),
    /// The connection was lost.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The server broke the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// The server said nothing for one and a half keep-alive intervals.
    #[error("the server no longer answers")]
    KeepAlive,
    /// The server, or what it announced about itself, rules the request out.
    #[error("{}", rejection(*.0))]
    Rejected(ReasonCode),
    /// Not a topic name or filter.
    #[error("{topic:?}: {source}")]
    Topic {
        /// The topic as given.
        topic: String,
        /// Fault in it.
        source: TopicError,
    },
    /// The client has been disconnected.
    #[error("the client is closed")]
    Closed,
}

/// Limits that the server announces are known before anything is sent; with other reasons it has refused a publication.
fn rejection(reason: ReasonCode) -> String {
    use ReasonCode as R;
    match reason {
        R::PacketTooLarge | R::QosNotSupported | R::RetainNotSupported => {
            format!("not supported by the broker: {reason}")
        }
        R::NotAuthorized => {
            format!(
                "the broker refused the publication: {reason}; this client may not publish to this topic (of Fulmar, \
                 `fulmar ctl explain` says why)"
            )
        }
        _ => format!("the broker refused the publication: {}", in_words(reason)),
    }
}

/// The reason, and what it means of Fulmar where the standard's words leave that open.
#[must_use]
pub fn in_words(reason: ReasonCode) -> String {
    match reason {
        ReasonCode::ImplementationSpecificError => format!(
            "{reason}; of Fulmar, the broker cannot store, because its disk is full or storage fails (`fulmar ctl status` \
             shows why)"
        ),
        _ => reason.to_string(),
    }
}

impl Error {
    /// Names the server that has refused the connection.
    pub(crate) fn set_server(&mut self, server: &str) {
        if let Error::Refused { url, .. } = self {
            server.clone_into(url);
        }
    }

    /// The failure of a list with this number of addresses, of which this was the last.
    pub(crate) fn after(self, tried: usize) -> Error {
        match tried {
            0 | 1 => self,
            _ => Error::NoAddress { tried, last: Box::new(self) },
        }
    }

    /// Whether another attempt without a change would be useless.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        use ReasonCode as R;
        match self {
            Error::Url { .. }
            | Error::Options(_)
            | Error::SignIn(_)
            | Error::Topic { .. }
            | Error::Closed => true,
            // Two clients with one identifier would disconnect each other for ever.
            Error::Disconnected(reason) => *reason == R::SessionTakenOver,
            Error::Refused { reason, .. } => matches!(
                reason,
                R::UnsupportedProtocolVersion
                    | R::ClientIdentifierNotValid
                    | R::BadUserNameOrPassword
                    | R::NotAuthorized
                    | R::Banned
                    | R::BadAuthenticationMethod
                    | R::MalformedPacket
                    | R::ProtocolError
                    | R::TopicNameInvalid
                    | R::PacketTooLarge
                    | R::QosNotSupported
                    | R::RetainNotSupported
            ),
            _ => false,
        }
    }
}
