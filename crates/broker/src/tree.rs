//! The subscription tree: finds the subscribers of a topic name.
//!
//! It has one node per topic level; `+` and `#` have their own places in a node, so that matching walks the
//! name's levels and never scans siblings (MQTT 5.0 section 4.7). Filters that begin with a wildcard
//! do not match names that begin with `$` ([MQTT-4.7.2-1]). Shared subscriptions
//! (section 4.8.2) hang on the same nodes, grouped by share name.
//!
//! Every change begins a new generation of the tree; a cached match is valid within its generation.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::message;
use crate::session::Session;
use crate::shared_groups::{SharedGroup, SharedGroups};
use crate::subscribers::{Subscriber, Subscribers};

/// The subscriptions that match a topic name: plain ones, and groups of shared ones.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    pub(crate) plain: Vec<Subscriber>,
    pub(crate) shared: Vec<Arc<SharedGroup>>,
    /// Nodes visited.
    pub(crate) nodes: usize,
}

/// A level of filters. Most have one child and end no filter, so they are small: a filter has up to 128 levels.
#[derive(Debug, Default)]
struct Node {
    children: Option<Children>,
    plus: Option<Box<Node>>,
    /// Subscribers of the filter that ends here.
    here: Option<Box<Leaf>>,
    /// Subscribers of the filter that ends here with `/#`.
    hash: Option<Box<Leaf>>,
}

/// The levels below a node that have names; none: `None`.
#[derive(Debug)]
enum Children {
    One(Box<(Box<str>, Node)>),
    Many(Box<FxHashMap<Box<str>, Node>>),
}

#[derive(Debug, Default)]
struct Leaf {
    plain: Subscribers,
    shared: SharedGroups,
}

/// All subscriptions of the broker.
#[derive(Debug, Default)]
pub(crate) struct TopicTree {
    root: Node,
    subscriptions: usize,
    /// Topics that filters beginning with a wildcard do not reach, besides those with `$`.
    apart: Option<&'static str>,
}

impl TopicTree {
    /// A tree whose topics below this prefix are reached only by filters that name it.
    pub(crate) fn with_apart(apart: Option<&'static str>) -> Self {
        Self { apart, ..Self::default() }
    }

    /// Adds a subscription, replacing the one this session has to the same filter and share name.
    /// Returns whether one was replaced.
    pub(crate) fn insert(
        &mut self,
        filter: &str,
        share: Option<&str>,
        subscriber: Subscriber,
    ) -> bool {
        let replaced = self.root.leaf_mut(filter).insert(filter, share, subscriber);
        self.subscriptions += usize::from(!replaced);
        replaced
    }

    /// Removes a session's subscription; returns whether it was there.
    pub(crate) fn remove(&mut self, filter: &str, share: Option<&str>, session: &Session) -> bool {
        let mut levels: Vec<&str> = filter.split('/').collect();
        let hash = levels.last() == Some(&"#");
        if hash {
            levels.pop();
        }
        let removed = self.root.remove(&levels, hash, share, session);
        self.subscriptions -= usize::from(removed);
        removed
    }

    /// Number of subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.subscriptions
    }

    /// Whether a subscription may match topics below `topic`, which begins with `$`.
    pub(crate) fn reaches_below(&self, topic: &str) -> bool {
        self.root.reaches_below(Some(topic), true)
    }

    /// All subscriptions that match `topic`.
    pub(crate) fn matches(&self, topic: &str) -> Matches {
        let mut found = Matches::default();
        let apart =
            topic.starts_with('$') || self.apart.is_some_and(|prefix| topic.starts_with(prefix));
        self.root.collect(Some(topic), apart, &mut found);
        found
    }
}

impl Matches {
    pub(crate) fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.shared.is_empty()
    }
}

impl Node {
    fn leaf_mut(&mut self, filter: &str) -> &mut Leaf {
        let mut node = self;
        for level in filter.split('/') {
            node = match level {
                "#" => return node.hash.get_or_insert_default(),
                "+" => node.plus.get_or_insert_default(),
                name => Children::get_or_insert(&mut node.children, name),
            };
        }
        node.here.get_or_insert_default()
    }

    /// Removes a subscription below this node, and nodes that have become empty on the way back.
    fn remove(
        &mut self,
        levels: &[&str],
        hash: bool,
        share: Option<&str>,
        session: &Session,
    ) -> bool {
        let Some((level, rest)) = levels.split_first() else {
            let place = if hash { &mut self.hash } else { &mut self.here };
            let Some(leaf) = place else { return false };
            let removed = leaf.remove(share, session);
            if leaf.is_empty() {
                *place = None;
            }
            return removed;
        };
        if *level == "+" {
            let Some(child) = &mut self.plus else { return false };
            let removed = child.remove(rest, hash, share, session);
            if child.is_empty() {
                self.plus = None;
            }
            return removed;
        }
        let child = self.children.as_mut().and_then(|children| children.get_mut(level));
        let Some(child) = child else { return false };
        let removed = child.remove(rest, hash, share, session);
        if child.is_empty() {
            Children::remove(&mut self.children, level);
        }
        removed
    }

    fn reaches_below(&self, rest: Option<&str>, dollar: bool) -> bool {
        if !dollar && self.hash.is_some() {
            return true;
        }
        let Some(rest) = rest else { return self.children.is_some() || self.plus.is_some() };
        let (level, rest) = match rest.split_once('/') {
            Some((level, rest)) => (level, Some(rest)),
            None => (rest, None),
        };
        let child = self.children.as_ref().and_then(|children| children.get(level));
        let plus = self.plus.as_deref().filter(|_| !dollar);
        child.into_iter().chain(plus).any(|node| node.reaches_below(rest, false))
    }

    fn is_empty(&self) -> bool {
        self.children.is_none() && self.plus.is_none() && self.here.is_none() && self.hash.is_none()
    }

    /// `rest` is what is left of the topic name below this node; `None` when it ended here.
    fn collect(&self, rest: Option<&str>, dollar: bool, found: &mut Matches) {
        found.nodes += 1;
        // `sport/#` also matches `sport` itself (section 4.7.1.2).
        if let Some(hash) = &self.hash
            && !dollar
        {
            hash.collect(found);
        }
        let Some(rest) = rest else {
            if let Some(here) = &self.here {
                here.collect(found);
            }
            return;
        };
        let (level, rest) = match rest.split_once('/') {
            Some((level, rest)) => (level, Some(rest)),
            None => (rest, None),
        };
        if let Some(child) = self.children.as_ref().and_then(|children| children.get(level)) {
            child.collect(rest, false, found);
        }
        if let Some(child) = &self.plus
            && !dollar
        {
            child.collect(rest, false, found);
        }
    }
}

impl Children {
    fn get(&self, level: &str) -> Option<&Node> {
        match self {
            Children::One(one) => (*one.0 == *level).then_some(&one.1),
            Children::Many(many) => many.get(level),
        }
    }

    fn get_mut(&mut self, level: &str) -> Option<&mut Node> {
        match self {
            Children::One(one) => (*one.0 == *level).then_some(&mut one.1),
            Children::Many(many) => many.get_mut(level),
        }
    }

    fn get_or_insert<'a>(children: &'a mut Option<Children>, level: &str) -> &'a mut Node {
        if let Some(Children::One(one)) = children
            && *one.0 != *level
        {
            *children = children.take().map(Children::into_many);
        }
        let first = || Children::One(Box::new((level.into(), Node::default())));
        match children.get_or_insert_with(first) {
            Children::One(one) => &mut one.1,
            Children::Many(many) => many.entry(level.into()).or_default(),
        }
    }

    fn into_many(self) -> Children {
        match self {
            Children::One(one) => Children::Many(Box::new([*one].into_iter().collect())),
            Children::Many(_) => self,
        }
    }

    fn remove(children: &mut Option<Children>, level: &str) {
        match children {
            Some(Children::Many(many)) => {
                many.remove(level);
                if many.len() == 1 {
                    let last = many.drain().next();
                    *children = last.map(|last| Children::One(Box::new(last)));
                } else if many.len() < many.capacity() / 4 {
                    // Frees the memory after many have gone.
                    many.shrink_to(2 * many.len());
                }
            }
            Some(Children::One(one)) if *one.0 == *level => *children = None,
            Some(Children::One(_)) | None => {}
        }
    }
}

impl Leaf {
    fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.shared.is_empty()
    }

    fn collect(&self, found: &mut Matches) {
        found.plain.extend_from_slice(self.plain.as_slice());
        self.shared.collect(&mut found.shared);
    }

    fn insert(&mut self, filter: &str, share: Option<&str>, subscriber: Subscriber) -> bool {
        let Some(share) = share else {
            return self.plain.add(subscriber);
        };
        self.shared.add_member(share, message::share(share, filter), subscriber)
    }

    fn remove(&mut self, share: Option<&str>, session: &Session) -> bool {
        let Some(share) = share else {
            return self.plain.remove(session);
        };
        self.shared.remove_member(share, session)
    }
}

#[cfg(test)]
mod tests {
    use fulmar_mqtt::QoS;

    use super::*;
    use crate::limits::Limits;
    use crate::storage::{FlowId, SessionKey};

    #[test]
    fn a_filter_with_thousands_of_share_names_reaches_each_and_forgets_each() {
        const NAMES: usize = 20_000;
        let session = Session::new(SessionKey(1), "c", &Limits::default());
        let subscriber = Subscriber {
            session: Arc::clone(&session),
            flow: FlowId::CONTROL,
            qos: QoS::AtMostOnce,
            no_local: false,
            retain_as_published: false,
            identifier: None,
        };
        let mut tree = TopicTree::default();
        let names: Vec<String> = (0..NAMES).map(|number| format!("group {number}")).collect();
        for (before, name) in names.iter().enumerate() {
            assert_eq!(tree.len(), before);
            assert!(!tree.insert("f", Some(name), subscriber.clone()));
        }
        assert!(names.iter().all(|name| tree.insert("f", Some(name), subscriber.clone())));
        assert_eq!(tree.matches("f").shared.len(), NAMES);
        for (gone, name) in names.iter().rev().enumerate() {
            assert_eq!(tree.len(), NAMES - gone);
            assert!(tree.remove("f", Some(name), &session));
            assert!(!tree.remove("f", Some(name), &session));
        }
        assert!(tree.matches("f").is_empty() && tree.root.is_empty());
    }
}
