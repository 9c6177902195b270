//! Reading retained messages without a subscription: for protocols in which a client asks for a topic's last
//! value. Access rules hold as for a subscription to the topic.

use std::sync::Arc;

use crate::access::{Action, Subject};
use crate::broker::Broker;
use crate::message::Message;
use crate::time::Timestamp;

/// Who reads: a client that the broker has let in.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// Its user; `None` for an anonymous one.
    pub user: Option<&'a str>,
    /// Its client identifier.
    pub client_id: &'a str,
}

/// The access rules keep the topic from the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

impl Broker {
    /// The topic's retained message, if it has one that has not expired.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn read(
        &self,
        reader: Reader<'_>,
        topic: &str,
        now: Timestamp,
    ) -> Result<Option<Arc<Message>>, Denied> {
        if !self.lets_read(reader, topic) {
            return Err(Denied);
        }
        let message = self.retained().read().get(topic).map(Arc::clone);
        Ok(message.filter(|message| !message.is_expired(now)))
    }

    /// Topics with a retained message that the reader may read, in order, at most `most`; those of the
    /// broker's own (`$`) are left out. Looks at no more than 64 times as many.
    #[must_use]
    pub fn readable_topics(&self, reader: Reader<'_>, most: usize) -> Vec<Box<str>> {
        let looked_at: Vec<Box<str>> = {
            let retained = self.retained().read();
            let own = |topic: &&str| topic.starts_with('$');
            let topics = retained.topics().filter(|topic| !own(topic));
            topics.take(most.saturating_mul(64)).map(Box::from).collect()
        };
        let readable = looked_at.into_iter().filter(|topic| self.lets_read(reader, topic));
        readable.take(most).collect()
    }

    fn lets_read(&self, reader: Reader<'_>, topic: &str) -> bool {
        let subject = Subject { username: reader.user, client_id: reader.client_id };
        self.access_control().allows(subject, Action::Subscribe, topic) && !self.keeps_back(topic)
    }
}
