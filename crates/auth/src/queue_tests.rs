//! The order of logins under attack, in simulated time: two threads, 16 hashes per second.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::Ipv4Addr;

use super::*;

const HASH_MS: u64 = 125;
const THREADS: usize = 2;
/// The longest that an honest new login may take.
const MAX_NEW_MS: u64 = 3_000;

/// How long the attack lasts; the figures are those of a minute, which takes an unoptimised test too long.
const ATTACK_MS: u64 = 20_000;

/// A server whose threads hash in simulated time, with attackers and honest users.
struct Simulated {
    queue: LoginQueue<Login>,
    start: Instant,
    now_ms: u64,
    /// When each thread has its hash, of which login.
    threads: [Option<(u64, NextLogin<Login>)>; THREADS],
    /// Users whose right password is known.
    known: HashMap<String, bool>,
    /// Users that were refused, and how long after their login.
    refused: Vec<(String, Duration)>,
    /// How long honest logins took; `None` for those without a place.
    honest: Vec<Option<u64>>,
    random: u64,
    hashes: u64,
}

#[derive(Clone, Debug)]
struct Login {
    user: String,
    right: bool,
    begun_ms: u64,
}

impl Simulated {
    /// With these users; whether their right password is known already.
    fn new(known: HashMap<String, bool>) -> Simulated {
        let (queue, start) = (LoginQueue::default(), Instant::now());
        let (refused, honest) = (Vec::new(), Vec::new());
        let threads = [const { None }; THREADS];
        Simulated { queue, start, now_ms: 0, threads, known, refused, honest, random: 1, hashes: 0 }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_millis(self.now_ms)
    }

    fn below(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % most
    }

    /// A stranger's login, from a network of its own among those of 240 wider ones.
    fn wrong(&mut self, user: String) {
        let (wide, host) = (self.below(240), self.below(1 << 16));
        let address = Ipv4Addr::from_bits(0x0A00_0000 + ((wide << 16) + host) as u32);
        self.log_in(user, address.into(), false);
    }

    fn log_in(&mut self, user: String, address: IpAddr, right: bool) {
        let (now, begun_ms) = (self.now(), self.now_ms);
        let known = self.known.get(&user).copied();
        if right && known == Some(true) && self.queue.may_try(&user, address, now) {
            self.queue.trust(&user, address);
            return self.honest.push(Some(0));
        }
        let login = Login { user: user.clone(), right, begun_ms };
        let pushed = self.queue.push((&user, address), known == Some(false), login, now);
        match pushed {
            Ok((_, Some(evicted))) if evicted.right => self.honest.push(None),
            Err(login) if login.right => self.honest.push(None),
            _ => {}
        }
    }

    /// A millisecond of the threads.
    fn step(&mut self) {
        for at in 0..THREADS {
            if self.threads[at].as_ref().is_some_and(|(until, _)| *until <= self.now_ms) {
                let (_, next) = self.threads[at].take().unwrap();
                let now = self.now();
                self.queue.hash_took(Duration::from_millis(HASH_MS), now);
                self.hashes += 1;
                self.checked(next, true);
            }
            while self.threads[at].is_none() {
                let now = self.now();
                let Some(next) = self.queue.pop(now) else { break };
                let decided = self.known.get(&next.login.user) != Some(&false);
                if next.hash && !(decided && next.login.right) {
                    self.threads[at] = Some((self.now_ms + HASH_MS, next));
                } else {
                    self.checked(next, false);
                }
            }
        }
        self.now_ms += 1;
    }

    fn checked(&mut self, next: NextLogin<Login>, hashed: bool) {
        let NextLogin { login, ticket, .. } = next;
        if login.right {
            self.queue.right(&ticket, self.now());
            self.known.insert(login.user, true);
            return self.honest.push(Some(self.now_ms - login.begun_ms));
        }
        let due = self.queue.refusal_due(&ticket, hashed, self.now());
        let begun = self.start + Duration::from_millis(login.begun_ms);
        self.refused.push((login.user, due - begun));
    }
}

fn numbered(name: &str, count: u64, known: bool) -> HashMap<String, bool> {
    (0..count).map(|number| (format!("{name}{number}"), known)).collect()
}

/// A time with wrong logins at this rate, and an honest new login every 1.7 s from networks never seen. Returns how long
/// these took.
fn attacked(
    per_ms: u32,
    users: HashMap<String, bool>,
    mut attack: impl FnMut(&mut Simulated) -> String,
    mut honest: impl FnMut(u64) -> String,
) -> (Vec<u64>, Simulated) {
    let mut simulated = Simulated::new(users);
    let mut number = 0;
    while simulated.now_ms < ATTACK_MS {
        for _ in 0..per_ms {
            let user = attack(&mut simulated);
            simulated.wrong(user);
        }
        if simulated.now_ms % 1_700 == 100 {
            let address = Ipv4Addr::new(192, 168, number as u8, 1).into();
            simulated.log_in(honest(number), address, true);
            number += 1;
        }
        simulated.step();
    }
    while simulated.now_ms < ATTACK_MS + MAX_NEW_MS {
        simulated.step();
    }
    assert_eq!(simulated.honest.len() as u64, number, "all have an answer");
    let took: Option<Vec<u64>> = simulated.honest.iter().copied().collect();
    let took = took.expect("an honest login had no place");
    assert!(*took.iter().max().unwrap() <= MAX_NEW_MS, "{took:?}");
    (took, simulated)
}

#[test]
fn unknown_names_cost_no_hash_and_nobody_waits_for_them() {
    for per_ms in [2, 5] {
        let users = numbered("honest", 40, false);
        let mut count = 0;
        let attack = |_: &mut Simulated| {
            count += 1;
            format!("stranger{count}")
        };
        let (took, simulated) = attacked(per_ms, users, attack, |number| format!("honest{number}"));
        // One a second is hashed to measure the time.
        assert!(simulated.hashes < 21 + took.len() as u64, "{}", simulated.hashes);
        assert!(*took.iter().max().unwrap() <= 4 * HASH_MS, "{took:?}");
    }
}

#[test]
fn an_honest_new_login_comes_before_guesses_at_a_thousand_other_names() {
    for known in [false, true] {
        let mut users = numbered("user", 1_000, known);
        users.extend(numbered("honest", 40, false));
        let attack = |simulated: &mut Simulated| format!("user{}", simulated.below(1_000));
        attacked(2, users, attack, |number| format!("honest{number}"));
    }
}

#[test]
fn an_honest_new_login_comes_before_guesses_at_a_thousand_names_and_its_own() {
    for known in [false, true] {
        let users = numbered("user", 1_000, known);
        let attack = |simulated: &mut Simulated| format!("user{}", simulated.below(1_000));
        attacked(2, users, attack, |number| format!("user{}", number * 7));
    }
}

#[test]
fn an_honest_new_login_comes_before_a_mix_of_names() {
    let mut users = numbered("user", 500, false);
    users.extend(numbered("seen", 500, true));
    users.extend(numbered("honest", 40, false));
    let attack = |simulated: &mut Simulated| {
        let number = simulated.below(500);
        match simulated.below(3) {
            0 => format!("user{number}"),
            1 => format!("seen{number}"),
            _ => format!("stranger{}", simulated.below(1 << 30)),
        }
    };
    attacked(2, users, attack, |number| format!("honest{number}"));
}

#[test]
fn guesses_at_one_name_have_a_limit_that_does_not_lock_its_user_out() {
    for known in [false, true] {
        let users = HashMap::from([("ann".to_owned(), known)]);
        // From another new network each time.
        let (_, simulated) = attacked(2, users, |_| "ann".to_owned(), |_| "ann".to_owned());
        let guesses = simulated.refused.len();
        assert!((20..40).contains(&guesses), "{guesses} guesses in 20 s");
    }
}

#[test]
fn a_user_from_a_network_that_was_good_before_does_not_wait() {
    let mut simulated = Simulated::new(HashMap::from([("ann".to_owned(), true)]));
    let home: IpAddr = Ipv4Addr::new(192, 168, 1, 1).into();
    simulated.log_in("ann".to_owned(), home, true);
    for _ in 0..5_000 {
        simulated.wrong("ann".to_owned());
        simulated.wrong("ann".to_owned());
        if simulated.now_ms.is_multiple_of(500) {
            simulated.log_in("ann".to_owned(), home, true);
        }
        simulated.step();
    }
    assert!(simulated.honest.iter().all(|took| *took == Some(0)), "{:?}", simulated.honest);
    // Until somebody guesses from there, too.
    for _ in 0..10 {
        simulated.log_in("ann".to_owned(), home, false);
    }
    assert!(!simulated.queue.may_try("ann", home, simulated.now()));
}

#[test]
fn strangers_do_not_make_a_network_that_was_good_before_a_strange_one() {
    for per_ms in [2, 5] {
        let mut simulated = Simulated::new(HashMap::from([("ann".to_owned(), true)]));
        let home: IpAddr = Ipv4Addr::new(192, 168, 1, 1).into();
        simulated.log_in("ann".to_owned(), home, true);
        for now_ms in 0..60_000 {
            for number in 0..per_ms {
                simulated.wrong(format!("stranger{now_ms}-{number}"));
            }
            if now_ms % 500 == 0 {
                simulated.log_in("ann".to_owned(), home, true);
            }
            simulated.step();
        }
        assert!(simulated.honest.iter().all(|took| *took == Some(0)), "{:?}", simulated.honest);
    }
}

#[test]
fn the_time_of_a_refusal_does_not_show_which_names_exist() {
    let kinds = ["known", "seen", "nobody"];
    let mut users = numbered("known", 16, false);
    users.extend(numbered("seen", 16, true));
    let mut simulated = Simulated::new(users);
    // As many at once as have guesses, so that they wait for each other.
    for at_once in 1..=MAX_GUESSES as u64 {
        let took = kinds.map(|kind| {
            for _ in 0..at_once {
                simulated.wrong(format!("{kind}{at_once}"));
            }
            (0..4_000).for_each(|_| simulated.step());
            let refused = std::mem::take(&mut simulated.refused);
            refused.into_iter().map(|(_, took)| took).collect::<Vec<_>>()
        });
        let [known, seen, nobody] = took;
        assert_eq!(known.len() as u64, at_once);
        assert!(known == seen && known == nobody, "{known:?}\n{seen:?}\n{nobody:?}");
    }
}

#[test]
fn a_login_that_was_not_checked_is_no_guess() {
    let (mut queue, now) = (LoginQueue::default(), Instant::now());
    for _ in 0..100 {
        let (id, _) = queue.push(("ann", address(1)), true, 0, now).unwrap();
        queue.remove(id, now);
    }
    assert!(queue.may_try("ann", address(9), now), "its client has left");
    let mut refused = 0;
    for number in 0..MAX_WAITING {
        queue.push((&format!("user{number}"), address(1)), true, number, now).unwrap();
    }
    for _ in 0..100 {
        refused += usize::from(queue.push(("bob", address(1)), true, 0, now).is_err());
    }
    // Two names are one in the sketch now and then, and give their place.
    assert!(refused > 90, "{refused}");
    assert!(queue.may_try("bob", address(1 << 16), now), "there was no room");
}

fn address(number: u32) -> IpAddr {
    IpAddr::V4((0x0a00_0000 + number).into())
}

#[test]
fn networks_with_much_to_check_come_last() {
    let (mut queue, now) = (LoginQueue::default(), Instant::now());
    for number in 0..100 {
        queue.push((&format!("user{number}"), address(1)), true, (1, number), now).unwrap();
    }
    queue.push(("ann", address(2)), true, (2, 0), now).unwrap();
    let order: Vec<_> = std::iter::from_fn(|| queue.pop(now)).map(|next| next.login).collect();
    assert_eq!(order[0], (2, 0));
    let others: Vec<_> = order[1..].iter().map(|login| login.1).collect();
    assert_eq!(others, (0..100).collect::<Vec<_>>(), "in the order in which they came");
    assert!(queue.is_empty());
}

#[test]
fn a_full_queue_gives_the_place_of_the_most_suspect() {
    let (mut queue, now) = (LoginQueue::default(), Instant::now());
    for number in 0..MAX_WAITING {
        // All one name: of hundreds, two are one in the sketch now and then.
        queue.push(("user", address(1)), true, number, now).unwrap();
    }
    let more = queue.push(("user", address(1)), true, MAX_WAITING, now);
    assert_eq!(more.unwrap_err(), MAX_WAITING);
    let (id, evicted) = queue.push(("ann", address(1 << 16)), true, 1_000, now).unwrap();
    assert_eq!(evicted, Some(MAX_WAITING - 1), "the newest");
    assert_eq!(queue.waiting.len(), MAX_WAITING);
    assert_eq!(queue.remove(id, now), Some(1_000));
    assert_eq!(queue.remove(id, now), None);
}

#[test]
fn users_who_log_in_right_leave_no_trace() {
    let (mut queue, now) = (LoginQueue::default(), Instant::now());
    for _ in 0..100 {
        queue.push(("fleet", address(1)), true, (), now).unwrap();
        let next = queue.pop(now).unwrap();
        queue.right(&next.ticket, now);
    }
    assert!(queue.may_try("fleet", address(9), now));
    let claim = queue.standing.claim("fleet", address(1));
    assert!(queue.standing.attempts.get(claim.wide, now) < 0.1);
}
