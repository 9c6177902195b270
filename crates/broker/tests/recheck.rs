//! What a client may do is looked at again when its user's rights change: once, however many changes there were.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{Conn, Hello, Seen, Setup, World, hello};
use fulmar_broker::access::{AccessRules, Action, Rule, Who};
use fulmar_broker::auth::{
    AccessControl, Admitted, Decision, ExternalUsers, HookLogin, Identity, IdentityChanges,
    IdentityTable, LoginHook,
};
use fulmar_broker::{Timestamp, TransportKind, User};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::Connect;
use fulmar_mqtt::{Packet, Properties, QoS, ReasonCode, Version};

/// Users whose tokens are their names.
#[derive(Debug, Default)]
struct Users {
    /// May do nothing any more.
    stripped: Mutex<HashSet<String>>,
    /// Questions whether somebody may have a subscription.
    asked: AtomicUsize,
    /// When tokens end.
    until: Mutex<Option<Timestamp>>,
}

impl ExternalUsers for Users {
    fn admit(&self, token: &str, _: Option<&str>, _: Timestamp) -> Option<Admitted> {
        Some(Admitted {
            user: User::external(token),
            until: self.until.lock().unwrap().unwrap_or(Timestamp::NEVER),
            credential: Some(token.into()),
        })
    }

    fn is_token(&self, _: &str) -> bool {
        true
    }

    fn is_good(&self, _: &str) -> bool {
        true
    }

    fn allows(&self, external_user: &str, action: Action, _: &str) -> bool {
        self.asked.fetch_add(usize::from(action == Action::Subscribe), Ordering::Relaxed);
        !self.stripped.lock().unwrap().contains(external_user)
    }
}

fn world(users: &Arc<Users>) -> World {
    let external_users = Some(Arc::clone(users) as Arc<dyn ExternalUsers>);
    let access_control = AccessControl { external_users, ..AccessControl::default() };
    World::with(Setup { access_control, ..Setup::default() })
}

fn say_connect(world: &mut World, conn: Conn, client_id: &str, password: Option<&[u8]>) {
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: true,
        keep_alive_s: 0,
        client_id,
        properties: Properties::NONE,
        will: None,
        username: None,
        password,
    };
    world.send(conn, &Packet::Connect(connect));
}

/// With a subscription.
fn connect(world: &mut World, user: &str) -> Conn {
    let conn = world.open(0);
    say_connect(world, conn, user, Some(user.as_bytes()));
    world.subscribe(conn, "fulmar/north/#", QoS::AtMostOnce);
    world.seen(conn);
    conn
}

#[test]
fn changes_in_a_row_have_a_client_looked_at_once() {
    let users = Arc::<Users>::default();
    let mut world = world(&users);
    let ann = connect(&mut world, "ann");
    users.asked.store(0, Ordering::Relaxed);
    for _ in 0..100 {
        world.broker.recheck_external_users(|_| true);
    }
    world.settle();
    assert_eq!(users.asked.load(Ordering::Relaxed), 1);
    users.stripped.lock().unwrap().insert("ann".to_owned());
    world.broker.recheck_external_users(|_| true);
    world.settle();
    assert_eq!(world.seen(ann), [Seen::Disconnect(ReasonCode::NotAuthorized)]);
}

#[test]
fn a_change_after_a_client_was_looked_at_counts_also_when_it_has_connected_again() {
    let users = Arc::<Users>::default();
    let mut world = world(&users);
    let first = connect(&mut world, "ann");
    world.broker.recheck_external_users(|_| true);
    world.settle();
    // The event is for a connection that has gone.
    world.broker.recheck_external_users(|_| true);
    world.cut(first);
    let second = connect(&mut world, "ann");
    users.stripped.lock().unwrap().insert("ann".to_owned());
    world.broker.recheck_external_users(|_| true);
    world.settle();
    assert_eq!(world.seen(second), [Seen::Disconnect(ReasonCode::NotAuthorized)]);
}

#[test]
fn a_token_that_has_expired_while_its_login_waited_takes_no_session_over() {
    let users = Arc::<Users>::default();
    let mut world = world(&users);
    let ann = connect(&mut world, "ann");
    *users.until.lock().unwrap() = Some(Timestamp(world.now().0 - 1));
    let late = world.open(0);
    say_connect(&mut world, late, "ann", Some(b"ann"));
    let refused = ReasonCode::NotAuthorized;
    assert_eq!(
        world.seen(late),
        [Seen::Connack { present: false, reason: refused, assigned: None }]
    );
    assert!(!world.is_closed(ann));
}

#[test]
fn a_change_of_one_user_has_no_other_looked_at() {
    let users = Arc::<Users>::default();
    let mut world = world(&users);
    let (ann, bob) = (connect(&mut world, "ann"), connect(&mut world, "bob"));
    users.stripped.lock().unwrap().insert("bob".to_owned());
    users.asked.store(0, Ordering::Relaxed);
    world.broker.recheck_external_users(|user| user == "bob");
    world.settle();
    assert_eq!(users.asked.load(Ordering::Relaxed), 1);
    assert_eq!(world.seen(bob), [Seen::Disconnect(ReasonCode::NotAuthorized)]);
    assert!(!world.is_closed(ann));
}

#[test]
fn a_client_whom_the_store_refuses_only_since_it_connected_is_disconnected() {
    let table = Arc::<IdentityTable>::default();
    for (bound, disabled) in [(Some("tablet"), false), (None, true)] {
        let identities = Some(Arc::clone(&table));
        let access_control = AccessControl { identities, ..AccessControl::default() };
        let mut world = World::with(Setup { access_control, ..Setup::default() });
        // By a certificate, for example: the store does not have the user yet.
        let ann = world.open_user(0, TransportKind::Tls, Some("ann"));
        say_connect(&mut world, ann, "phone", None);
        world.seen(ann);
        let identity = Identity::new(bound, None, disabled, 1, Vec::new()).unwrap();
        let users = vec![("ann".into(), Some(identity))];
        table.change(IdentityChanges { users, ..IdentityChanges::default() });
        world.broker.identities_changed(|user| user == Some("ann"));
        world.settle();
        assert_eq!(world.seen(ann), [Seen::Disconnect(ReasonCode::NotAuthorized)]);
        let gone = vec![("ann".into(), None)];
        table.change(IdentityChanges { users: gone, ..IdentityChanges::default() });
    }
}

/// A service whose rules are these.
#[derive(Debug, Default)]
struct Service(Mutex<Option<Arc<AccessRules>>>);

impl LoginHook for Service {
    fn decides_about_certificates(&self) -> bool {
        false
    }

    fn log_in(&self, _: HookLogin<'_>) -> Decision {
        Decision::Now(Err(ReasonCode::NotAuthorized))
    }

    fn rules(&self, _: &User, _: &str) -> Option<Arc<AccessRules>> {
        self.0.lock().unwrap().clone()
    }
}

fn rules(allow: bool, filter: &str) -> Arc<AccessRules> {
    let (who, filter) = (Who::Anyone, filter.into());
    let one = Rule { allow, who, action: Some(Action::Publish), filter, exact: false };
    Arc::new(AccessRules::new(vec![one], false).unwrap())
}

/// A world with that service, where nothing else is allowed.
fn asking(service: &Arc<Service>) -> World {
    let hook = Some(Arc::clone(service) as Arc<dyn LoginHook>);
    let rules = AccessRules::new(Vec::new(), false).unwrap();
    let access_control = AccessControl { hook, rules, ..AccessControl::default() };
    World::with(Setup { access_control, ..Setup::default() })
}

#[test]
fn what_the_rules_of_a_login_allowed_before_is_forgotten_when_they_change() {
    let service = Arc::new(Service::default());
    *service.0.lock().unwrap() = Some(rules(true, "#"));
    let mut world = asking(&service);
    let ann = world.open_user(0, TransportKind::Tls, Some("ann"));
    say_connect(&mut world, ann, "phone", None);
    world.seen(ann);
    let publish = |world: &mut World, id| {
        world.publish(ann, "t", "x", QoS::AtLeastOnce, id);
        world.settle();
        world.seen(ann)
    };
    let puback = |id, reason| [Seen::Ack(AckKind::Puback, id, reason)];
    assert_eq!(publish(&mut world, 1), puback(1, ReasonCode::NoMatchingSubscribers));
    *service.0.lock().unwrap() = Some(rules(false, "#"));
    world.broker.rights_changed("phone");
    world.settle();
    assert_eq!(publish(&mut world, 2), puback(2, ReasonCode::NotAuthorized));
}

#[test]
fn a_will_that_a_login_allowed_outlives_its_rules_until_a_login_brings_others() {
    let service = Arc::new(Service::default());
    // Forgotten at a restart; others, that say nothing about it.
    for (now, published) in [(None, 1), (Some(rules(true, "other")), 0)] {
        *service.0.lock().unwrap() = Some(rules(true, "gone/#"));
        let mut world = asking(&service);
        let ann = world.open_user(0, TransportKind::Tls, Some("ann"));
        world.say_hello(ann, &Hello { will: Some(("gone/ann", 0)), ..hello("phone") });
        *service.0.lock().unwrap() = now;
        world.cut(ann);
        assert_eq!(world.total("wills_published"), published);
        assert_eq!(world.total("wills_refused"), 1 - published);
    }
}
