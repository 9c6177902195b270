//! Commands of the application, as the client's task receives them.

use fulmar_mqtt::ReasonCode;
use fulmar_mqtt::packet::SubscribeOptions;
use tokio::sync::{mpsc, oneshot};

use crate::api::PathStats;
use crate::error::Error;
use crate::message::{Message, Receipt};

pub(crate) type Published = oneshot::Sender<Result<ReasonCode, Error>>;
pub(crate) type Answered = oneshot::Sender<Result<Vec<ReasonCode>, Error>>;

/// A message, and where to send its result.
pub(crate) type Publication = (Message, Published);

/// Commands other than publications, which must not wait behind a full queue of them.
#[derive(Debug)]
pub(crate) enum Control {
    Subscribe(Vec<(String, SubscribeOptions)>, Answered),
    Unsubscribe(Vec<String>, Answered),
    Acknowledge(Receipt),
    Rebind,
    /// Asks for the connection's statistics; `None` without a connection.
    Stats(oneshot::Sender<Option<PathStats>>),
    /// The sender is dropped when the client is closed.
    Disconnect(oneshot::Sender<()>),
}

/// The commands' receiving ends.
pub(crate) struct Inbox {
    pub(crate) publications: mpsc::Receiver<Publication>,
    pub(crate) control: mpsc::Receiver<Control>,
    pub(crate) open: bool,
}

/// A command of the application.
pub(crate) enum Command {
    Publish(Publication),
    Control(Control),
    /// Every handle was dropped.
    End,
}

impl Inbox {
    /// The next command; a publication only if there is room for it.
    pub(crate) async fn next(&mut self, room: bool) -> Command {
        if !self.open {
            return std::future::pending().await;
        }
        tokio::select! {
            control = self.control.recv() => match control {
                Some(control) => Command::Control(control),
                None => {
                    self.open = false;
                    Command::End
                }
            },
            Some(publication) = self.publications.recv(), if room => Command::Publish(publication),
        }
    }
}
