//! What the API needs of the rest of the server.

use std::path::Path;
use std::pin::Pin;

use fulmar_mqtt::QoS;
use tokio::sync::mpsc;

/// A result that comes later; the error is a sentence.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// A message that a tap sees.
#[derive(Clone, Debug)]
pub struct Tapped {
    /// The topic.
    pub topic: String,
    /// The payload.
    pub payload: Vec<u8>,
    /// The publisher's QoS.
    pub qos: QoS,
    /// Whether it was retained before the tap began.
    pub retain: bool,
    /// Messages dropped since the one before, because the tap was too slow.
    pub dropped: u64,
}

/// The rest of the server.
pub trait Server: Send + Sync {
    /// Removes a topic's retained message as a client would: durable when this returns. Subscribers get the empty
    /// message that MQTT defines for this.
    fn clear_retained<'a>(&'a self, topic: &'a str) -> Later<'a, ()>;

    /// Subscribes to a filter with the rights of the program, until the receiver is dropped. Retained messages come
    /// first.
    ///
    /// # Errors
    /// A sentence.
    fn tap(&self, filter: &str, buffer: usize) -> Result<mpsc::Receiver<Tapped>, String>;

    /// What is logged: a filter such as `info,fulmar_broker=debug`; `None` if the server has no log of its own.
    fn log_filter(&self) -> Option<String>;

    /// Changes that.
    ///
    /// # Errors
    /// It is no filter, or there is no log.
    fn set_log_filter(&self, filter: &str) -> Result<(), String>;

    /// Writes consistent copies of everything that the server needs into an empty folder, and returns what it left out,
    /// in words. Takes its time.
    ///
    /// # Errors
    /// A sentence.
    fn copy_to(&self, folder: &Path) -> Result<Vec<String>, String>;

    /// Where the rule of this number is, counted from 0, in words.
    fn place_of_rule(&self, number: usize) -> String;
}
