//! The delivery of one message to all its receivers.

use std::sync::Arc;

use fulmar_mqtt::QoS;

use crate::aliases::Naming;
use crate::memory::MemoryOwner;
use crate::message::MessageParts;
use crate::publication::{Publication, Terms};
use crate::retained::RetainedFull;
use crate::route::Target;
use crate::session::Session;
use crate::shard::Shard;
use crate::shared_groups::SharedGroup;
use crate::turn::Turn;

impl Shard {
    /// Publishes: sets or clears the retained message if asked to, and delivers to everybody the
    /// topic reaches. Returns how many took it.
    pub(crate) fn publish(&mut self, parts: MessageParts<'_>) -> usize {
        self.publish_or_refuse(parts, false).unwrap_or(0)
    }

    /// Like [`Shard::publish`]. If `whole` is set, the publisher can get an error; a message that cannot be retained is
    /// then not delivered either.
    ///
    /// # Errors
    /// A bound of the retained messages was reached, and `whole` is set.
    pub(crate) fn publish_or_refuse(
        &mut self,
        parts: MessageParts<'_>,
        whole: bool,
    ) -> Result<usize, RetainedFull> {
        let broker = Arc::clone(&self.turn.broker);
        let retainer = if parts.retain { self.turn.retainer.take() } else { None };
        let route = self.routes.find(&broker, parts.topic, &mut self.turn.fan_out);
        let mut publication = Publication::new(parts, &mut self.parcel);
        publication.found_in = route.generation;
        if parts.retain
            && let Err(full) = self.turn.retain(&mut publication, retainer)
        {
            if let Some(times) = self.turn.occurred("retained messages") {
                tracing::warn!(
                    topic = parts.topic,
                    times,
                    "message not retained: max_retained_messages or max_retained_bytes, or its user's share of them, is reached; \
                     clear topics that are not used any more, or raise both in [limits]"
                );
            }
            if whole {
                return Err(full);
            }
        }
        let (size, targets) = (publication.size(), route.targets.len());
        if size >= broker.limits().large_message_bytes
            && targets > 1
            && size.saturating_mul(targets) > broker.limits().much_for_all()
        {
            // At QoS 0 nobody has to remember it, but its copies are not to be made at once.
            publication.message(&broker);
        }
        let (mut taken, mut visits) = (0, targets);
        for target in &route.targets {
            self.test_hook.run();
            taken += usize::from(self.turn.hand_over(&mut publication, target));
        }
        for group in &route.shared {
            self.test_hook.run();
            let (took, tried) = self.turn.hand_to_one(&mut publication, group, route.guarded);
            taken += usize::from(took);
            visits += tried;
        }
        self.turn.fan_out.spend(visits, publication.bytes);
        if self.turn.is_traced() {
            self.turn.trace_routed(publication.kept(), taken);
        }
        // What the broker says of itself need not interest anybody.
        if taken == 0 && !parts.topic.starts_with("$SYS/") {
            self.turn.metrics().messages_unroutable.add(1);
        }
        Ok(taken)
    }
}

impl Shard {
    /// Publishes to one session only, if it has a subscription and the rules allow it.
    pub(crate) fn publish_to(&mut self, session: &Session, topic: &str, payload: &[u8]) -> bool {
        let broker = Arc::clone(&self.turn.broker);
        let route = self.routes.find(&broker, topic, &mut self.turn.fan_out);
        let parts = MessageParts { topic, payload, ..MessageParts::default() };
        let mut publication = Publication::new(parts, &mut self.parcel);
        publication.found_in = route.generation;
        let own = route.targets.iter().filter(|target| target.session.key() == session.key());
        let mut taken = false;
        for target in own {
            taken |= self.turn.hand_over(&mut publication, target);
        }
        taken
    }
}

/// Retained messages that are removed for a new one at most, because they have expired.
const MOST_REMOVED: usize = 10_000;

impl Turn {
    fn hand_over(&mut self, publication: &mut Publication<'_>, target: &Target) -> bool {
        let parts = publication.parts();
        if target.no_local && parts.publisher == target.session.publisher() {
            return false;
        }
        let terms = Terms {
            qos: target.qos.min(parts.qos),
            retain: parts.retain && target.retain_as_published,
            identifiers: &target.identifiers,
            naming: Naming::Topic,
        };
        let taken = deliver(self, &target.session, publication, target.flow, terms);
        if taken && self.is_traced() && terms.qos == QoS::AtMostOnce {
            self.trace_sent(&target.session, publication.parts());
        }
        taken
    }

    /// Hands the publication to one member of a group: the next one that is connected and accepts it,
    /// or else one that is not, whose session keeps it (section 4.8.2). Returns whether one took it, and
    /// how many were tried.
    pub(crate) fn hand_to_one(
        &mut self,
        publication: &mut Publication<'_>,
        group: &SharedGroup,
        guarded: bool,
    ) -> (bool, usize) {
        publication.share = group.name;
        let (mut first_absent, mut tried) = (None, 0);
        for member in group.rotation() {
            tried += 1;
            if guarded && !self.broker.may_receive(&member.session, publication.parts().topic) {
                continue;
            }
            if member.session.lock().attachment.is_none() {
                first_absent = first_absent.or(Some(member));
            } else if self.hand_over(publication, &Target::from_subscriber(&member)) {
                return (true, tried);
            }
        }
        let kept = first_absent
            .is_some_and(|member| self.hand_over(publication, &Target::from_subscriber(&member)));
        (kept, tried)
    }

    /// Sets or clears the topic's retained message; the store's bound decides.
    fn retain(
        &mut self,
        publication: &mut Publication<'_>,
        owner: Option<Arc<MemoryOwner>>,
    ) -> Result<(), RetainedFull> {
        let broker = Arc::clone(&self.broker);
        let topic = publication.parts().topic;
        let stored = !topic.starts_with('$');
        if publication.parts().payload.is_empty() {
            let mut retained = broker.retained.write();
            if retained.remove(topic) && stored {
                self.store_retained(topic);
            }
            return Ok(());
        }
        let message = publication.message(&broker);
        let mut retained = broker.retained.write();
        let mut put = retained.set_message(&message, owner.as_ref(), broker.limits());
        let mut most = MOST_REMOVED;
        while put.is_err()
            && most > 0
            && let Some(expired) = retained.remove_expired(self.now)
        {
            most -= 1;
            self.store_retained(&expired);
            put = retained.set_message(&message, owner.as_ref(), broker.limits());
        }
        match put {
            Ok(()) if stored => self.store_retained(topic),
            Ok(()) => {}
            Err(RetainedFull) => self.metrics().retained_refused.add(1),
        }
        put
    }
}

/// Delivers to one flow of one session.
pub(crate) fn deliver(
    turn: &mut Turn,
    session: &Arc<Session>,
    publication: &mut Publication<'_>,
    flow: crate::storage::FlowId,
    terms: Terms<'_>,
) -> bool {
    session.lock().deliver(session, turn, publication, flow, terms)
}
