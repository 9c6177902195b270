//! Random operations against a model in memory, with clean restarts and crashes in between.
//!
//! A crash is a copy of the database and its log taken while the store works, the log optionally
//! torn at a random byte. The copy must hold the state after some whole number of batches, and all
//! that were reported durable unless the log was torn.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::sync::Arc;

use common::{Opened, database};
use fulmar_broker::message::{Message, MessageId, MessageParts};
use fulmar_broker::storage::{
    Delivery, FlowId, Op, Position, Progress, QueuedRecord, Restored, Seq, SessionKey,
    SessionRecord, Storage, SubscriptionRecord, Testator, Will,
};
use fulmar_broker::{Timestamp, User};
use fulmar_mqtt::{PacketId, QoS};
use fulmar_simulator::Tables;
use fulmar_store::Options;
use proptest::prelude::*;

type Flow = (u64, u64);

/// What the store should hold; messages by their printed form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    sessions: BTreeMap<u64, String>,
    flows: BTreeMap<Flow, (u8, u64)>,
    subscriptions: BTreeMap<(u64, String), (u64, String)>,
    queued: BTreeMap<(Flow, u64), String>,
    inbound: BTreeSet<(Flow, u16)>,
    retained: BTreeMap<String, String>,
}

fn queued_text(message: &Message, delivery: &Delivery, progress: Progress) -> String {
    format!("{message:?} {delivery:?} {progress:?}")
}

impl Model {
    fn of(restored: &Restored) -> Model {
        let order = |q: &QueuedRecord| (q.session, q.flow, q.position);
        assert!(restored.queued.is_sorted_by_key(order));
        let subscription = |s: &SubscriptionRecord| {
            ((s.session.0, s.filter.to_string()), (s.flow.0, format!("{s:?}")))
        };
        let queued = |q: &QueuedRecord| {
            let key = ((q.session.0, q.flow.0), q.position.0);
            (key, queued_text(&q.message, &q.delivery, q.progress))
        };
        Model {
            sessions: restored.sessions.iter().map(|s| (s.key.0, format!("{s:?}"))).collect(),
            flows: restored.flows.iter().map(|f| ((f.0.0, f.1.0), (f.2, f.3))).collect(),
            subscriptions: restored.subscriptions.iter().map(subscription).collect(),
            queued: restored.queued.iter().map(queued).collect(),
            inbound: restored.inbound.iter().map(|i| ((i.0.0, i.1.0), i.2.get())).collect(),
            retained: restored
                .retained
                .iter()
                .map(|m| (m.topic().to_string(), format!("{m:?}")))
                .collect(),
        }
    }
}

/// A random choice that becomes a valid operation when its turn comes.
#[derive(Clone, Debug)]
struct Choice {
    kind: u8,
    session: u64,
    flow: u64,
    pick: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Submit(Vec<Choice>),
    Wait,
    Crash,
    Tear(u16),
    CrashAndGoOn,
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let choice = (0u8..20, 1u64..4, 0u64..2, 0u64..1 << 32)
        .prop_map(|(kind, session, flow, pick)| Choice { kind, session, flow, pick });
    let submit = proptest::collection::vec(choice, 1..12).prop_map(Step::Submit);
    let step = prop_oneof![
        20 => submit,
        2 => Just(Step::Wait),
        2 => Just(Step::Crash),
        2 => any::<u16>().prop_map(Step::Tear),
        1 => Just(Step::CrashAndGoOn),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..40)
}

struct Run {
    folder: tempfile::TempDir,
    opened: Opened,
    /// State after each batch since the last start, from 0.
    history: Vec<Model>,
    now: Model,
    /// What operations mean, as all simulations have it.
    tables: Tables,
    messages: Vec<Arc<Message>>,
    position: u64,
    stored_message: u64,
}

fn options() -> Options {
    // Small, so that several transactions are under way when the store crashes.
    Options { commit_max_ops: 16, ..Options::default() }
}

impl Run {
    fn new() -> Run {
        let folder = tempfile::tempdir().unwrap();
        let (opened, restored) = Opened::new(&database(folder.path()), &options());
        assert_eq!(Model::of(&restored), Model::default());
        Run {
            folder,
            opened,
            history: vec![Model::default()],
            now: Model::default(),
            tables: Tables::default(),
            messages: Vec::new(),
            position: 0,
            stored_message: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Submit(choices) => self.submit(choices),
            Step::Wait => self.opened.wait(Seq(self.history.len() as u64 - 1)),
            Step::Crash => drop(self.crash(None)),
            Step::Tear(at) => drop(self.crash(Some(*at))),
            Step::CrashAndGoOn => {
                let (folder, state) = self.crash(None);
                self.start(folder, state);
            }
            Step::Restart => {
                self.opened.storage.close().unwrap();
                let folder = copy(self.folder.path());
                let state = self.now.clone();
                self.start(folder, state);
            }
        }
    }

    fn submit(&mut self, choices: &[Choice]) {
        let mut ops = Vec::new();
        for choice in choices {
            let Some(op) = self.operation(choice) else {
                continue;
            };
            self.tables.apply(&op);
            self.now = Model::of(&self.tables.restored());
            ops.push(op);
        }
        if ops.is_empty() {
            return;
        }
        let seq = self.opened.submit(ops);
        self.history.push(self.now.clone());
        assert_eq!(seq.0 as usize, self.history.len() - 1);
    }

    /// Copies the files as they are now, checks what the copy holds.
    fn crash(&self, tear: Option<u16>) -> (tempfile::TempDir, Model) {
        let durable = self.opened.storage.committed().0 as usize;
        let copy = copy(self.folder.path());
        let path = database(copy.path());
        if let Some(at) = tear {
            let log = OpenOptions::new().write(true).open(path.with_extension("db-wal")).unwrap();
            let length = log.metadata().unwrap().len();
            log.set_len(length * u64::from(at) / 65_536).unwrap();
        }
        let state = Model::of(&common::reopen(&path));
        let first = if tear.is_some() { 0 } else { durable };
        assert!(
            self.history[first..].contains(&state),
            "not the state after a whole number of batches, or batches up to {durable} lost: {state:#?}"
        );
        (copy, state)
    }

    fn start(&mut self, folder: tempfile::TempDir, state: Model) {
        let (opened, restored) = Opened::new(&database(folder.path()), &options());
        assert_eq!(Model::of(&restored), state);
        self.tables = Tables::from(&restored);
        assert!(restored.last_message_id >= self.highest(&state));
        self.opened = opened;
        self.folder = folder;
        self.history = vec![state.clone()];
        self.now = state;
    }

    fn highest(&self, state: &Model) -> u64 {
        let stored = |m: &&Arc<Message>| {
            let text = format!("{m:?}");
            state.queued.values().any(|q| q.starts_with(&text))
                || state.retained.values().any(|r| *r == text)
        };
        self.messages.iter().filter(stored).map(|m| m.id().0).max().unwrap_or(0)
    }

    fn operation(&mut self, choice: &Choice) -> Option<Op> {
        let (session, flow) = (SessionKey(choice.session), FlowId(choice.flow));
        let pick = choice.pick;
        Some(match choice.kind {
            0 => Op::SessionPut(SessionRecord {
                key: session,
                client_id: format!("client {}", pick % 7).into(),
                username: pick.is_multiple_of(2).then(|| "user".into()),
                mqtt_sn: [None, Some(false), Some(true)][pick as usize % 3],
                expiry_interval_s: u32::MAX - (pick % 3) as u32,
                expires_at: pick.is_multiple_of(3).then_some(Timestamp(u64::MAX - pick)),
                will: pick.is_multiple_of(4).then(|| Arc::new(will(pick))),
                will_at: pick.is_multiple_of(8).then_some(Timestamp(pick)),
            }),
            1 if pick.is_multiple_of(4) => Op::SessionRemove(session),
            2 => Op::FlowPut { session, flow, flags: pick as u8, expiry_s: pick },
            3 if pick.is_multiple_of(4) => Op::FlowRemove { session, flow },
            4 => Op::SubscriptionPut(SubscriptionRecord {
                session,
                flow,
                filter: format!("f/{}", pick % 3).into(),
                options: pick as u8,
                identifier: pick.is_multiple_of(2).then_some(pick as u32),
                replay: pick.is_multiple_of(3).then(|| format!("t/{pick}").into()),
            }),
            5 => Op::SubscriptionRemove { session, filter: format!("f/{}", pick % 3).into() },
            6..=9 => self.enqueue(session, flow, pick),
            10..=13 => {
                let keys: Vec<_> = self.now.queued.keys().collect();
                let ((session, flow), position) = **keys.get(pick as usize % keys.len().max(1))?;
                let (session, flow) = (SessionKey(session), FlowId(flow));
                let position = Position(position);
                if choice.kind < 12 {
                    Op::Advance { session, flow, position, progress: progress(pick) }
                } else {
                    Op::Dequeue { session, flow, position }
                }
            }
            14 | 15 => {
                let packet_id = PacketId::new(1 + (pick % 3) as u16)?;
                let key = ((session.0, flow.0), packet_id.get());
                if self.now.inbound.contains(&key) {
                    return None;
                }
                Op::InboundReceived { session, flow, packet_id }
            }
            16 => {
                let packet_id = PacketId::new(1 + (pick % 3) as u16)?;
                Op::InboundReleased { session, flow, packet_id }
            }
            17 | 18 => Op::RetainedPut(self.message(pick)),
            _ => Op::RetainedRemove(format!("t/{}", pick % 3).into()),
        })
    }

    fn enqueue(&mut self, session: SessionKey, flow: FlowId, pick: u64) -> Op {
        self.position += 1;
        let identifiers = (0..pick % 3).map(|i| (pick as u32) ^ i as u32).collect();
        Op::Enqueue {
            session,
            flow,
            position: Position(self.position),
            message: self.message(pick),
            delivery: Delivery {
                qos: qos(pick),
                retain: pick.is_multiple_of(2),
                identifiers,
                share: pick as u32 % 3,
            },
            progress: progress(pick >> 8),
        }
    }

    /// A new message, or one that other queues may hold.
    fn message(&mut self, pick: u64) -> Arc<Message> {
        if !pick.is_multiple_of(3) && !self.messages.is_empty() {
            let index = pick as usize % self.messages.len();
            return Arc::clone(&self.messages[index]);
        }
        self.stored_message += 1;
        let topic = format!("t/{}", pick % 5);
        let payload = vec![pick as u8; (pick % 600) as usize];
        let parts = MessageParts {
            topic: &topic,
            properties: &payload[..payload.len().min(9)],
            payload: &payload,
            qos: qos(pick >> 4),
            retain: pick.is_multiple_of(5),
            expires_at: pick.is_multiple_of(2).then_some(Timestamp(pick)),
            publisher: pick,
        };
        let message = Message::new(MessageId(self.stored_message), &parts);
        self.messages.push(Arc::clone(&message));
        message
    }
}

fn qos(pick: u64) -> QoS {
    [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][(pick % 3) as usize]
}

fn progress(pick: u64) -> Progress {
    match PacketId::new(pick as u16) {
        Some(id) if pick.is_multiple_of(3) => Progress::Sent(id),
        Some(id) if pick % 3 == 1 => Progress::Released(id),
        Some(_) if pick.is_multiple_of(2) => Progress::Offered,
        _ => Progress::Queued,
    }
}

/// The database first: as long as the log is not copied back, it alone changes, at its end.
fn copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for name in ["fulmar.db", "fulmar.db-wal"] {
        let from = folder.join(name);
        if from.exists() {
            fs::copy(from, copy.path().join(name)).unwrap();
        }
    }
    copy
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_holds_what_the_model_holds(steps in steps()) {
        let mut run = Run::new();
        for step in &steps {
            run.step(step);
        }
        run.step(&Step::Restart);
        run.opened.storage.close().unwrap();
    }
}

fn will(pick: u64) -> Will {
    Will {
        topic: format!("will/{pick}").into(),
        properties: vec![0x01, pick as u8].into(),
        payload: pick.to_le_bytes().into(),
        qos: [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][(pick % 3) as usize],
        retain: pick.is_multiple_of(3),
        delay_s: u32::MAX - pick as u32,
        message_expiry_s: pick.is_multiple_of(5).then_some(pick as u32),
        testator: Testator {
            // That of its session.
            user: Some(User::from_text("user")),
            address: pick.is_multiple_of(3).then(|| [192, 0, 2, pick as u8].into()),
            until: Timestamp(u64::MAX - pick % 2),
            credential: pick.is_multiple_of(5).then(|| format!("credential {pick}").into()),
            certificate: pick.is_multiple_of(7).then_some(u64::MAX - pick),
            by_login: pick.is_multiple_of(8),
        },
    }
}
