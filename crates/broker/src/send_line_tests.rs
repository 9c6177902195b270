//! The order in which streams send and publishers publish.

use super::*;

const STREAM: StreamKey = StreamKey::CONTROL;

fn lines() -> (SendLine, SendLine) {
    let backlog = SendBacklog::new(Mailboxes::new(2));
    (SendLine::new(Arc::clone(&backlog), 1000, 0, 1), SendLine::new(backlog, 1000, 1, 1))
}

fn called(line: &mut SendLine) -> Vec<u64> {
    let mut called = Vec::new();
    line.call(|token| called.push(token.0));
    called
}

impl SendLine {
    fn may(&mut self, token: u64) -> bool {
        self.may_send(Token(token), STREAM)
    }

    /// A turn in which connections see that they have something large, and ask whether they may send it.
    fn see(&mut self, receivers: std::ops::Range<u64>) {
        let events: Vec<_> =
            receivers.clone().map(|token| (Token(token), BrokerEvent::ReadyLarge)).collect();
        self.count_announcements(&events);
        for token in receivers {
            self.may(token);
        }
        self.end_turn();
    }

    fn publish_to(&mut self, receivers: u64) {
        (0..receivers).for_each(|_| self.announce());
        self.end_turn();
    }
}

#[test]
fn those_in_line_are_served_in_order_and_nobody_overtakes_them() {
    let (mut line, _) = lines();
    assert!(line.may(1));
    line.copy(Token(1), STREAM, 1000);
    assert!((1..=20).all(|token| !line.may(token)));
    assert!(called(&mut line).is_empty(), "in the next turn");
    line.end_turn();
    assert!(!line.may(99), "at the end of the line");
    assert_eq!(called(&mut line), [1, 2, 3, 4, 5, 6, 7, 8]);
    line.copy(Token(9), STREAM, 1000);
    assert!(line.may(1) && line.may(1) && !line.may_send(Token(1), StreamKey(4)));
    line.copy(Token(1), STREAM, CALL_BYTES);
    assert!(!line.may(1), "it has had its share");
    line.end_turn();
    assert!(line.may(3), "it was called in the turn before");
    line.end_turn();
    assert!(!line.may(4), "it was called long ago");
    assert_eq!(called(&mut line), [9, 10, 11, 12, 13, 14, 15, 16]);
    assert_eq!(called(&mut line), [17, 18, 19, 20, 99, 1, 1, 4]);
    assert!(!line.has_work() && line.may(5));
}

#[test]
fn publishers_wait_until_the_receivers_of_the_one_before_are_served() {
    let (mut publishers, mut receivers) = lines();
    assert!(!publishers.may_delay());
    assert!((7..10).map(|token| publishers.must_wait(Token(token))).eq([false, true, true]));
    publishers.publish_to(12);
    assert!(publishers.may_delay() && publishers.publishers.contains(&Token(8)));
    assert_eq!(called(&mut publishers), [7], "another stream of it may wait");
    assert!(called(&mut publishers).is_empty(), "the receivers have not been asked yet");
    receivers.copy(Token(99), STREAM, 1000);
    receivers.count_announcements(&[]);
    receivers.see(0..12);
    assert!(called(&mut publishers).is_empty());
    assert_eq!(called(&mut receivers).len(), 8);
    assert!(!publishers.go_on(Token(8)));
    assert_eq!(called(&mut receivers).len(), 4);
    // Its event was posted by the other worker.
    assert!(!publishers.go_on(Token(9)), "nobody overtakes it");
    assert!(publishers.go_on(Token(8)) && !publishers.publishers.contains(&Token(8)));
    assert!(!publishers.go_on(Token(9)), "in the same turn");
    publishers.publish_to(12);
    (0..2).for_each(|_| receivers.end_turn());
    receivers.copy(Token(99), STREAM, 1000);
    receivers.see(0..12);
    assert!(!publishers.go_on(Token(9)));
    called(&mut receivers);
    called(&mut receivers);
    assert!(publishers.go_on(Token(9)));
    publishers.publish_to(0);
    assert!(!publishers.may_delay());
}

#[test]
fn receivers_that_do_not_read_hold_nobody_up() {
    let (mut publishers, mut receivers) = lines();
    assert!(!publishers.must_wait(Token(7)));
    assert!(publishers.must_wait(Token(8)));
    publishers.publish_to(2);
    // Their connections get the event, and cannot write.
    receivers.count_announcements(&[0, 1].map(|token| (Token(token), BrokerEvent::ReadyLarge)));
    assert!(!publishers.go_on(Token(8)), "they may still get in line in this turn");
    receivers.end_turn();
    assert!(publishers.go_on(Token(8)));
}

#[test]
fn a_publisher_that_leaves_its_message_out_or_ends_is_not_waited_for() {
    let (mut publishers, mut receivers) = lines();
    assert!(!publishers.must_wait(Token(7)));
    assert!((8..11).all(|token| publishers.must_wait(Token(token))));
    publishers.forget(Token(8));
    publishers.publish_to(0);
    assert_eq!(called(&mut publishers), [7, 9], "the first of the others");
    for _ in 0..=MAX_RELEASED_TURNS {
        assert!(publishers.publishers.contains(&Token(9)));
        publishers.end_turn();
    }
    assert!(!publishers.publishers.contains(&Token(9)), "it is heard again");
    assert_eq!(called(&mut publishers), [10, 9]);
    assert!(publishers.go_on(Token(10)));
    publishers.forget(Token(10));
    assert!(receivers.must_wait(Token(1)), "what it has published is not announced yet");
    publishers.publish_to(0);
    assert!(receivers.go_on(Token(1)));
    receivers.end_turn();
    assert!(!receivers.may_delay());
}
