//! Topic aliases that a sender has set (section 3.3.2.3.4).

/// Alias table of one receiving direction. Owns no memory until the first alias.
#[derive(Debug, Default)]
pub struct TopicAliases {
    topics: Vec<Option<Box<str>>>,
    /// Bytes of all topics together.
    bytes: usize,
}

impl TopicAliases {
    /// Sets `alias` to `topic`. False when the alias is 0 or above `maximum`.
    pub fn set(&mut self, alias: u16, maximum: u16, topic: &str) -> bool {
        if alias == 0 || alias > maximum {
            return false;
        }
        let at = usize::from(alias) - 1;
        if self.topics.len() <= at {
            self.topics.resize(at + 1, None);
        }
        let before = self.topics[at].replace(topic.into());
        self.bytes = self.bytes + topic.len() - before.map_or(0, |before| before.len());
        true
    }

    /// Bytes of all topics together.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The topic of `alias`.
    #[must_use]
    pub fn get(&self, alias: u16) -> Option<&str> {
        self.topics.get(usize::from(alias).checked_sub(1)?)?.as_deref()
    }
}
