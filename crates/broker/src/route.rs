//! Routes: which sessions get a topic's messages. Each worker has a cache of them.
//!
//! A publisher sends to the same few topics repeatedly. The tree is searched, and overlapping subscriptions are merged,
//! once per topic and generation of the tree.
//!
//! Any change of the tree makes every route stale. That costs 0.25 µs at a topic's next publication, and 45 ns per
//! receiver, about as much as the publication itself (`benches/routes.rs`, on two cores of a cloud machine, with 10,000
//! and with 100,000 other subscriptions). Finer generations would cost more, on every publication.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fulmar_mqtt::QoS;
use rustc_hash::FxHashMap;

use crate::broker::Broker;
use crate::fan_out::FanOutBudget;
use crate::message::Identifiers;
use crate::session::Session;
use crate::shared_groups::SharedGroup;
use crate::storage::FlowId;
use crate::subscribers::Subscriber;
use crate::tree::Matches;

/// One receiver of a topic: a flow of a session, its overlapping subscriptions merged into the one
/// delivery that MQTT 5.0 section 3.3.4 allows, at the highest quality of service among them.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) session: Arc<Session>,
    pub(crate) flow: FlowId,
    pub(crate) qos: QoS,
    pub(crate) no_local: bool,
    pub(crate) retain_as_published: bool,
    pub(crate) identifiers: Identifiers,
}

impl Target {
    pub(crate) fn of(subscriber: &Subscriber) -> Target {
        Target {
            session: Arc::clone(&subscriber.session),
            flow: subscriber.flow,
            qos: subscriber.qos,
            no_local: subscriber.no_local,
            retain_as_published: subscriber.retain_as_published,
            identifiers: subscriber.identifier.into_iter().collect(),
        }
    }

    fn merge(&mut self, other: &Subscriber) {
        if other.qos > self.qos {
            self.qos = other.qos;
        }
        self.no_local &= other.no_local;
        self.retain_as_published |= other.retain_as_published;
        self.identifiers.extend(other.identifier);
    }
}

/// All receivers of a topic.
#[derive(Debug)]
pub(crate) struct Route {
    /// The tree's generation in which it was found.
    pub(crate) generation: u64,
    pub(crate) targets: Box<[Target]>,
    pub(crate) shared: Box<[Arc<SharedGroup>]>,
    /// Some members of the groups may not be allowed to get the message. All targets are.
    pub(crate) guarded: bool,
}

impl Route {
    /// About what it takes in a cache, under this topic.
    fn bytes(&self, topic: &str) -> usize {
        let identifiers = self.targets.iter().filter(|target| target.identifiers.spilled());
        let identifiers: usize = identifiers.map(|target| target.identifiers.capacity()).sum();
        ROUTE_BYTES
            + topic.len()
            + size_of_val(&*self.targets)
            + size_of_val(&*self.shared)
            + identifiers * size_of::<u32>()
    }

    fn new(generation: u64, guarded: bool, matches: Matches) -> Route {
        let mut targets: Vec<Target> = Vec::with_capacity(matches.plain.len());
        let mut places = FxHashMap::default();
        for subscriber in &matches.plain {
            let place = (subscriber.session.key(), subscriber.flow);
            match places.entry(place) {
                std::collections::hash_map::Entry::Occupied(at) => {
                    let at: &usize = at.get();
                    targets[*at].merge(subscriber);
                }
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(targets.len());
                    targets.push(Target::of(subscriber));
                }
            }
        }
        Route {
            generation,
            guarded,
            targets: targets.into_boxed_slice(),
            shared: matches.shared.into_boxed_slice(),
        }
    }
}

/// What a route takes beside its topic and its targets, in bytes.
const ROUTE_BYTES: usize = 160;

/// A worker's cache of routes.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    routes: FxHashMap<Box<str>, Arc<Route>>,
    /// About what they take in memory.
    bytes: usize,
}

impl RouteCache {
    /// The topic's current route. A search counts towards `fan_out`.
    pub(crate) fn find(
        &mut self,
        broker: &Broker,
        topic: &str,
        fan_out: &mut FanOutBudget,
    ) -> Arc<Route> {
        let generation = broker.tree_generation.load(Ordering::Acquire);
        if let Some(route) = self.routes.get(topic)
            && route.generation == generation
        {
            return Arc::clone(route);
        }
        let (generation, mut matches) = {
            let tree = broker.tree.read();
            // Read under the lock: a change made since would have given another number.
            (broker.tree_generation.load(Ordering::Acquire), tree.matches(topic))
        };
        // A session never changes its user, and a user's rights change only with the rules, which begin a new
        // generation.
        let guarded = broker.access_control().guards(topic);
        if guarded {
            matches.plain.retain(|to| broker.may_receive(&to.session, topic));
        }
        let found = matches.plain.len() + matches.shared.len();
        fan_out.spend(found + matches.nodes, 0);
        let route = Arc::new(Route::new(generation, guarded, matches));
        if let Some(old) = self.routes.remove(topic) {
            self.bytes -= old.bytes(topic);
        }
        let limits = broker.limits();
        let bytes = route.bytes(topic);
        if self.routes.len() >= limits.max_cached_routes
            || self.bytes + bytes > limits.max_cached_route_bytes
        {
            self.routes.clear();
            self.bytes = 0;
        }
        // Even one that is larger than the bound: otherwise it would be searched for again for each of its messages.
        self.bytes += bytes;
        self.routes.insert(topic.into(), Arc::clone(&route));
        route
    }

    /// Removes routes of an older generation, which keep ended sessions in memory.
    pub(crate) fn forget_stale(&mut self, broker: &Broker) {
        let generation = broker.tree_generation.load(Ordering::Acquire);
        self.routes.retain(|_, route| route.generation == generation);
        self.bytes = self.routes.iter().map(|(topic, route)| route.bytes(topic)).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::storage::{NoStorage, Restored, SessionKey};
    use crate::{BrokerConfig, ClientStatistics};
    use fulmar_auth::AccessControl;
    use fulmar_auth::Timestamp;

    const BYTES: usize = 2 << 20;

    /// A broker in which every topic reaches this number of sessions.
    fn broker(receivers: u64, max_cached_routes: usize) -> Arc<Broker> {
        let limits =
            Limits { max_cached_routes, max_cached_route_bytes: BYTES, ..Limits::default() };
        let (access_control, client_statistics) =
            (AccessControl::default(), ClientStatistics::Nobody);
        let config = BrokerConfig {
            workers: 1,
            limits,
            access_control,
            sys_interval_s: 0,
            client_statistics,
            internal_sessions: Vec::new(),
        };
        let broker = Broker::new(config, Arc::new(NoStorage), Restored::default(), Timestamp(1));
        for key in 1..=receivers {
            let session = Session::new(SessionKey(key), "", broker.limits());
            let subscriber = Subscriber {
                session,
                flow: FlowId::CONTROL,
                qos: QoS::AtMostOnce,
                no_local: false,
                retain_as_published: false,
                identifier: None,
            };
            broker.change_tree(|tree| tree.insert("#", None, subscriber));
        }
        broker
    }

    /// Finds the routes of this number of topics; the most bytes and routes that were remembered meanwhile.
    fn find(cache: &mut RouteCache, broker: &Broker, topics: usize) -> (usize, usize) {
        let (mut bytes, mut routes) = (0, 0);
        for number in 0..topics {
            let topic = format!("topic/{number}");
            cache.find(broker, &topic, &mut FanOutBudget::default());
            bytes = bytes.max(remembered(cache));
            routes = routes.max(cache.routes.len());
        }
        (bytes, routes)
    }

    /// What is remembered, in bytes.
    fn remembered(cache: &RouteCache) -> usize {
        let targets: usize = cache.routes.values().map(|route| route.targets.len()).sum();
        let topics: usize = cache.routes.keys().map(|topic| topic.len()).sum();
        let bytes = targets * size_of::<Target>() + topics + cache.routes.len() * ROUTE_BYTES;
        assert_eq!(cache.bytes, bytes, "what is counted is what there is");
        bytes
    }

    #[test]
    fn routes_that_are_remembered_are_bounded_by_their_size() {
        const RECEIVERS: usize = 5_000;
        let (mut cache, broker) = (RouteCache::default(), broker(RECEIVERS as u64, 16_384));
        let fit = BYTES / (RECEIVERS * size_of::<Target>() + ROUTE_BYTES + 8);
        let (bytes, routes) = find(&mut cache, &broker, 2 * fit + 10);
        assert!(bytes <= BYTES && routes == fit, "{bytes} bytes of {routes} routes, not {fit}");
        // A change makes all of them stale: they are found anew, and counted once.
        broker.change_tree(|_| ());
        assert!(find(&mut cache, &broker, 10).0 <= BYTES);
        broker.change_tree(|_| ());
        cache.forget_stale(&broker);
        assert_eq!((cache.bytes, cache.routes.len()), (0, 0));
    }

    #[test]
    fn a_route_larger_than_the_bound_is_remembered_alone() {
        let receivers = BYTES / size_of::<Target>() + 1;
        let (mut cache, broker) = (RouteCache::default(), broker(receivers as u64, 16_384));
        assert_eq!(find(&mut cache, &broker, 3).1, 1);
        let before = cache.routes.values().next().map(Arc::as_ptr);
        cache.find(&broker, "topic/2", &mut FanOutBudget::default());
        assert_eq!(cache.routes.values().next().map(Arc::as_ptr), before);
    }

    #[test]
    fn long_topics_count() {
        let (mut cache, broker) = (RouteCache::default(), broker(0, 16_384));
        for number in 0..1_000 {
            let topic = format!("{number}{}", "t".repeat(60_000));
            cache.find(&broker, &topic, &mut FanOutBudget::default());
            assert!(remembered(&cache) <= BYTES);
        }
    }

    #[test]
    fn routes_that_reach_nobody_are_bounded_by_their_number() {
        let (mut cache, broker) = (RouteCache::default(), broker(0, 100));
        assert_eq!(find(&mut cache, &broker, 250).1, 100);
        assert_eq!(cache.routes.len(), 50);
    }
}
