//! Tests of [`super`].

#![allow(clippy::unwrap_used)]

use super::*;

fn message(seq: u64) -> Stored {
    Stored { seq, entered_ms: 1000, payload: vec![0; 100].into(), ..Stored::default() }
}

fn read(messages: impl IntoIterator<Item = Stored>, more: bool) -> Page {
    let messages: Vec<Stored> = messages.into_iter().collect();
    Page { to: messages.last().map_or(0, |last| last.seq), messages, more }
}

fn scheduler(messages: usize, bytes: usize) -> UplinkScheduler {
    UplinkScheduler::new(Window { messages, bytes }, None)
}

fn seqs(scheduler: &mut UplinkScheduler) -> Vec<u64> {
    std::iter::from_fn(|| scheduler.next(0)).map(|publication| publication.first()).collect()
}

#[test]
fn what_arrives_while_a_page_is_read_is_read_next() {
    let mut scheduler = scheduler(100, usize::MAX);
    scheduler.loaded(Priority::Urgent, read([], false));
    assert_eq!(scheduler.wants(), Some((Priority::Normal, 0)));
    // The page was read before the second message was stored, and is handled after the news of it.
    scheduler.arrived(Priority::Normal);
    scheduler.loaded(Priority::Normal, read([message(1)], false));
    assert_eq!(seqs(&mut scheduler), [1]);
    assert_eq!(scheduler.wants(), Some((Priority::Normal, 1)));
    scheduler.loaded(Priority::Normal, read([message(2)], false));
    assert_eq!(seqs(&mut scheduler), [2]);
    assert_eq!(scheduler.wants(), None);
}

#[test]
fn urgent_messages_do_not_wait_for_refused_batches() {
    let batching = Batching { messages: 2, bytes: 10_000, delay_ms: 0, only_sensors: false };
    let window = Window { messages: 100, bytes: usize::MAX };
    let mut scheduler = UplinkScheduler::new(window, Some(batching));
    scheduler.loaded(Priority::Normal, read((1..=2).map(message), false));
    let batch = scheduler.next(2000).unwrap();
    scheduler.loaded(Priority::Urgent, read([message(3)], false));
    scheduler.refused(&batch, ReasonCode::NotAuthorized, 2000);
    scheduler.loaded(Priority::Urgent, read([message(4)], false));
    assert_eq!(scheduler.next(2000).map(|next| next.first()), Some(3));
    assert_eq!(scheduler.next(2000).map(|next| next.first()), Some(4));
}

#[test]
fn urgent_goes_first_and_does_not_starve_the_rest() {
    let mut scheduler = scheduler(100, usize::MAX);
    assert_eq!(scheduler.wants(), Some((Priority::Urgent, 0)));
    scheduler.loaded(Priority::Urgent, read((101..=120).map(message), false));
    assert_eq!(scheduler.wants(), Some((Priority::Normal, 0)));
    scheduler.loaded(Priority::Normal, read((1..=3).map(message), false));
    let order = seqs(&mut scheduler);
    let expected: Vec<u64> =
        (101..=108).chain([1]).chain(109..=116).chain([2]).chain(117..=120).chain([3]).collect();
    assert_eq!(order, expected);
}

#[test]
fn what_is_on_its_way_is_bounded_and_urgent_has_room_of_its_own() {
    let size = message(1).size();
    let mut scheduler = scheduler(100, size * 2);
    scheduler.loaded(Priority::Urgent, read([], false));
    scheduler.loaded(Priority::Normal, read((1..=5).map(message), false));
    assert_eq!(seqs(&mut scheduler), [1, 2]);
    scheduler.arrived(Priority::Urgent);
    assert_eq!(scheduler.wants(), Some((Priority::Urgent, 0)));
    scheduler.loaded(Priority::Urgent, read([message(6)], false));
    assert_eq!(seqs(&mut scheduler), [6]);
    scheduler.done(1);
    assert_eq!(seqs(&mut scheduler), [3]);
    scheduler.done(1);
    assert_eq!(seqs(&mut scheduler), [0; 0], "the same end counts once");
}

#[test]
fn nothing_is_read_while_there_is_no_room() {
    let mut scheduler = scheduler(2, usize::MAX);
    scheduler.loaded(Priority::Urgent, read([], false));
    scheduler.loaded(Priority::Normal, read([message(1), message(2)], true));
    assert_eq!(seqs(&mut scheduler), [1, 2]);
    assert_eq!(scheduler.wants(), None);
    scheduler.done(2);
    assert_eq!(scheduler.wants(), Some((Priority::Normal, 2)));
    scheduler.restart(0);
    assert_eq!((scheduler.wants(), scheduler.in_flight()), (Some((Priority::Urgent, 0)), 0));
}

#[test]
fn small_messages_wait_a_little_for_company() {
    let batching = Batching { messages: 3, bytes: 10_000, delay_ms: 500, only_sensors: false };
    let mut scheduler =
        UplinkScheduler::new(Window { messages: 100, bytes: usize::MAX }, Some(batching));
    scheduler.loaded(Priority::Urgent, read([], false));
    scheduler.loaded(Priority::Normal, read((1..=4).map(message), false));
    let Some(Publication::Batch(full)) = scheduler.next(1000) else {
        panic!("a full batch goes at once")
    };
    assert_eq!(full.iter().map(|message| message.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(scheduler.next(1499), None);
    assert_eq!(scheduler.due_at(), Some(1500));
    assert_eq!(scheduler.next(1500), Some(Publication::One(message(4))));
    assert_eq!(scheduler.due_at(), None);
    let mut large = message(6);
    large.retain = true;
    scheduler.loaded(Priority::Normal, read([message(5), large, message(7)], false));
    let order = std::iter::from_fn(|| scheduler.next(9999)).map(|publication| publication.first());
    assert_eq!(
        order.collect::<Vec<_>>(),
        [5, 6, 7],
        "one that cannot travel in a batch keeps its place"
    );
}

#[test]
fn a_batch_that_waits_grows_by_what_arrives() {
    let batching = Batching { messages: 3, bytes: 10_000, delay_ms: 500, only_sensors: false };
    let mut scheduler =
        UplinkScheduler::new(Window { messages: 100, bytes: usize::MAX }, Some(batching));
    scheduler.loaded(Priority::Urgent, read([], false));
    scheduler.loaded(Priority::Normal, read([message(1)], false));
    assert_eq!((scheduler.next(1100), scheduler.wants()), (None, None));
    for seq in [2, 3] {
        scheduler.arrived(Priority::Normal);
        assert_eq!(scheduler.next(1100), None, "it does not go alone because another came");
        assert_eq!(scheduler.wants(), Some((Priority::Normal, seq - 1)));
        scheduler.loaded(Priority::Normal, read([message(seq)], false));
    }
    let Some(Publication::Batch(batch)) = scheduler.next(1100) else { panic!("it is full") };
    assert_eq!(batch.len(), 3);
}

fn stored(seq: u64, topic: &str) -> Stored {
    Stored { topic: topic.into(), ..message(seq) }
}

fn lanes(scheduler: &mut UplinkScheduler, messages: impl IntoIterator<Item = Stored>) {
    lanes_at(scheduler, 0, messages);
}

fn lanes_at(
    scheduler: &mut UplinkScheduler,
    now_ms: u64,
    messages: impl IntoIterator<Item = Stored>,
) {
    scheduler.loaded(Priority::Urgent, read([], false));
    scheduler.loaded(Priority::Normal, read(messages, false));
    scheduler.end_pass_if_read(now_ms);
}

const DENIED: ReasonCode = ReasonCode::NotAuthorized;

#[test]
fn a_refused_topic_waits_and_holds_up_no_other() {
    let all = || [stored(1, "a"), stored(2, "b"), stored(3, "a"), stored(4, "b")];
    let mut scheduler = scheduler(2, usize::MAX);
    lanes(&mut scheduler, all());
    let (a, b) = (scheduler.next(0).unwrap(), scheduler.next(0).unwrap());
    assert_eq!(scheduler.refused(&a, DENIED, 1000), RefusalRecord::New);
    assert_eq!(scheduler.accepted(&b, 1000), None);
    assert_eq!(seqs(&mut scheduler), [4], "the topic that is allowed goes on");
    scheduler.done(4);
    assert_eq!(scheduler.refusals().retry_at_ms(), Some(6000));
    // Still refused: one message was sent as a probe, and the next probe is later.
    scheduler.restart(6000);
    lanes_at(&mut scheduler, 6000, [stored(1, "a"), stored(3, "a")]);
    let probe = scheduler.next(0).unwrap();
    assert_eq!((probe.first(), scheduler.next(0)), (1, None), "one of a topic");
    assert_eq!(scheduler.refused(&probe, DENIED, 6000), RefusalRecord::Known);
    assert_eq!(scheduler.refusals().retry_at_ms(), Some(16_000));
    let (_, refusal) = scheduler.refusals().iter().next().unwrap();
    assert_eq!((refusal.reason, refusal.since_ms), (DENIED, 1000));
    // Accepted now: the skipped messages follow in order.
    scheduler.restart(16_000);
    lanes(&mut scheduler, [stored(1, "a"), stored(3, "a")]);
    let probe = scheduler.next(0).unwrap();
    let (what, _) = scheduler.accepted(&probe, 16_000).unwrap();
    assert_eq!(what, Refused::Topic("a".into()));
    scheduler.restart(16_001);
    lanes(&mut scheduler, [stored(3, "a")]);
    assert_eq!((seqs(&mut scheduler), scheduler.refusals().is_empty()), (vec![3], true));
}

#[test]
fn a_broker_that_cannot_store_now_is_asked_again_soon() {
    const STALLED: ReasonCode = ReasonCode::ImplementationSpecificError;
    let mut scheduler = scheduler(2, usize::MAX);
    lanes(&mut scheduler, [stored(1, "a"), stored(2, "b")]);
    let (a, b) = (scheduler.next(0).unwrap(), scheduler.next(0).unwrap());
    scheduler.refused(&a, DENIED, 1000);
    for now in [6000, 16_000] {
        scheduler.restart(now);
        lanes_at(&mut scheduler, now, [stored(1, "a")]);
        let probe = scheduler.next(now).unwrap();
        scheduler.refused(&probe, DENIED, now);
    }
    assert_eq!(scheduler.refusals().retry_at_ms(), Some(36_000));
    scheduler.refused(&b, STALLED, 17_000);
    assert_eq!(scheduler.refusals().retry_at_ms(), Some(22_000));
}

#[test]
fn what_no_longer_waits_is_no_longer_refused() {
    let mut scheduler = scheduler(2, usize::MAX);
    lanes(&mut scheduler, [stored(1, "a")]);
    let a = scheduler.next(0).unwrap();
    scheduler.refused(&a, DENIED, 0);
    scheduler.restart(5000);
    lanes(&mut scheduler, []);
    assert!(scheduler.refusals().is_empty(), "it was dropped for its age, say");
}

#[test]
fn refused_topics_are_bounded() {
    let mut scheduler = scheduler(10_000, usize::MAX);
    let topics = crate::refusals::MAX_REFUSED as u64;
    lanes(&mut scheduler, (1..=topics + 1).map(|seq| stored(seq, &seq.to_string())));
    let publications: Vec<Publication> = std::iter::from_fn(|| scheduler.next(0)).collect();
    let records: Vec<_> =
        publications.iter().map(|publication| scheduler.refused(publication, DENIED, 0)).collect();
    assert_eq!(
        (records[0], *records.last().unwrap()),
        (RefusalRecord::New, RefusalRecord::TooMany)
    );
}

#[test]
fn the_messages_of_an_unacceptable_batch_are_sent_singly() {
    let batching = Batching { messages: 3, bytes: 10_000, delay_ms: 0, only_sensors: false };
    let window = Window { messages: 100, bytes: usize::MAX };
    let mut scheduler = UplinkScheduler::new(window, Some(batching));
    lanes(&mut scheduler, (1..=5).map(message));
    let batch = scheduler.next(1000).unwrap();
    assert_eq!(batch.messages().len(), 3);
    scheduler.unbatch(&batch, 1000);
    scheduler.restart(1000);
    lanes(&mut scheduler, (1..=5).map(message));
    let sizes =
        std::iter::from_fn(|| scheduler.next(1000)).map(|publication| publication.messages().len());
    assert_eq!(sizes.collect::<Vec<_>>(), [1, 1, 1, 2]);
}

#[test]
fn refused_batches_wait_and_what_goes_alone_does_not() {
    let batching = Batching { messages: 2, bytes: 10_000, delay_ms: 0, only_sensors: false };
    let window = Window { messages: 100, bytes: usize::MAX };
    let mut scheduler = UplinkScheduler::new(window, Some(batching));
    let retained = |seq| Stored { retain: true, ..stored(seq, "r") };
    lanes(&mut scheduler, [message(1), message(2), message(3), message(4), retained(5)]);
    let batch = scheduler.next(1000).unwrap();
    assert_eq!(scheduler.refused(&batch, DENIED, 0), RefusalRecord::New);
    assert_eq!(seqs(&mut scheduler), [5]);
    scheduler.restart(5000);
    lanes(&mut scheduler, [message(1), message(2), message(3), message(4)]);
    let probe = scheduler.next(6000).unwrap();
    assert_eq!((probe.messages().len(), scheduler.next(6000)), (2, None));
}

#[test]
fn what_the_platform_does_not_take_out_of_batches_is_sent_singly() {
    let batching = Batching { messages: 3, bytes: 10_000, delay_ms: 0, only_sensors: true };
    let window = Window { messages: 100, bytes: usize::MAX };
    let mut scheduler = UplinkScheduler::new(window, Some(batching));
    let topics = [
        "fulmar/town/sensor/attic/radon",
        "fulmar/town/sensor/attic/co2",
        "fulmar/town/receiver/gw-1/frame",
        "fulmar/town/receiver/gw-1/frame",
        "plant/sensor",
        "fulmar/town/sensor/attic",
        "fulmar/town/sensor/attic",
    ];
    lanes(&mut scheduler, (1..).zip(topics).map(|(seq, topic)| stored(seq, topic)));
    let sizes =
        std::iter::from_fn(|| scheduler.next(1000)).map(|publication| publication.messages().len());
    assert_eq!(sizes.collect::<Vec<_>>(), [2, 1, 1, 1, 2]);
}
