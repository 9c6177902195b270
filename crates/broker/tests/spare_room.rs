//! What sessions keep on the heap after they have had much: no more than what counts for their users, or sessions that
//! were filled and emptied would take any amount of memory while the accounts show none.
#![allow(clippy::unwrap_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{Conn, Seen, Setup, World, lasting};
use fulmar_broker::{Account, Limits, MemoryLimits, TransportKind};
use fulmar_mqtt::ack::AckKind;
use fulmar_mqtt::packet::{FilterList, Packet, Unsubscribe};
use fulmar_mqtt::{PacketId, Properties, QoS, ReasonCode, Version};

/// The system's allocator, with a count for each thread: the world of a test has no other threads.
struct Counting;

thread_local! {
    static HEAP: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator as it is.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.set(HEAP.get() + layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP.set(HEAP.get() - layout.size().cast_signed());
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SESSIONS: usize = 5;
const MANY: usize = 300;
/// Of one session, beyond what counts: mostly what the world of a test keeps of up to three connections. A fifth of what
/// any of the sessions below would keep if nothing were given back.
const SLACK: usize = 8 * 1024;

fn world() -> World {
    let limits = Limits {
        memory: MemoryLimits::NONE
            .with(Account::Sessions, 1 << 30)
            .with(Account::Messages, 1 << 30),
        max_in_flight: 1_024,
        ..Limits::default()
    };
    World::with(Setup { limits, ..Setup::default() })
}

fn connect(world: &mut World, id: &str) -> Conn {
    let conn = world.open_user(0, TransportKind::Tcp, Some("eve"));
    world.say_hello(conn, &lasting(id.to_owned().leak()));
    let seen = world.peek(conn);
    assert!(matches!(seen[..], [Seen::Connack { reason: ReasonCode::Success, .. }, ..]));
    conn
}

/// Has sessions filled and emptied as `session` does; each may keep what counts for it and [`SLACK`].
fn keeps_what_counts(session: impl Fn(&mut World, &str)) {
    let mut world = world();
    // What the broker and the world themselves keep from now on.
    session(&mut world, "first");
    let counted = |world: &World| {
        let of = |account| world.broker.memory_totals(account).0;
        of(Account::Sessions) + of(Account::Messages)
    };
    let (heap, before) = (HEAP.get(), counted(&world));
    for number in 0..SESSIONS {
        session(&mut world, &format!("session-{number}"));
    }
    let kept = usize::try_from(HEAP.get() - heap).unwrap_or(0);
    let counts = counted(&world) - before;
    assert!(kept <= counts + SESSIONS * SLACK, "{kept} bytes kept, of which {counts} count");
}

/// Messages that waited, of which the client acknowledges all but this many.
fn queued_and_taken(world: &mut World, id: &str, left: usize) {
    let conn = connect(world, id);
    world.subscribe(conn, id, QoS::AtLeastOnce);
    world.cut(conn);
    let publisher = connect(world, "publisher");
    for _ in 0..MANY {
        world.publish(publisher, id, "x", QoS::AtLeastOnce, 1);
    }
    world.cut(publisher);
    let conn = connect(world, id);
    let mut received = Vec::new();
    loop {
        let got: Vec<u16> = world.got(conn).iter().map(|got| got.id).collect();
        let due = if received.len() + got.len() < MANY { 0 } else { left };
        let (now, later) = got.split_at(got.len().saturating_sub(due));
        for id in now {
            world.ack(conn, AckKind::Puback, *id);
        }
        received.extend(got.iter().copied());
        if received.len() >= MANY || got.is_empty() {
            assert_eq!((received.len(), later.len()), (MANY, left));
            break;
        }
    }
    world.cut(conn);
}

#[test]
fn queues_that_were_emptied_take_nothing() {
    keeps_what_counts(|world, id| queued_and_taken(world, id, 0));
}

#[test]
fn queues_of_which_one_message_is_left_take_little() {
    keeps_what_counts(|world, id| queued_and_taken(world, id, 1));
}

fn unsubscribe(world: &mut World, conn: Conn, filter: &str) {
    let mut list = Vec::new();
    FilterList::encode_one(&mut list, filter, None);
    let (packet_id, properties) = (PacketId::FIRST, Properties::NONE);
    let filters = FilterList::from_encoded(&list, false, Version::V5).unwrap();
    world.send(conn, &Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }));
}

#[test]
fn subscriptions_that_ended_take_nothing() {
    keeps_what_counts(|world, id| {
        let conn = connect(world, id);
        let filters: Vec<String> = (0..MANY).map(|number| format!("{id}/{number}")).collect();
        for filter in &filters {
            world.subscribe(conn, filter, QoS::AtMostOnce);
        }
        for filter in &filters {
            unsubscribe(world, conn, filter);
        }
        world.seen(conn);
        world.cut(conn);
    });
}

#[test]
fn identifiers_that_a_publisher_does_not_release_count() {
    keeps_what_counts(|world, id| {
        let conn = connect(world, id);
        for number in 1..=MANY {
            let number = u16::try_from(number).unwrap();
            world.publish(conn, "nobody", "x", QoS::ExactlyOnce, number);
        }
        assert_eq!(world.seen(conn).len(), 1 + MANY);
        world.cut(conn);
    });
}
