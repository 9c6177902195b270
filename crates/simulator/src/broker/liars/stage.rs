//! Plays a schedule with liars.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use fulmar_broker::{Limits, StreamKey, Timestamp};
use fulmar_mqtt::PacketId;

use super::fakes::Fakes;
use super::law::{Law, Who};
use super::{ACCOUNTS, Deed, Lie};
use crate::broker::schedule::{Setup, Step};
use crate::script::{Played, Simulation, Story};
use crate::settings::Settings;
use crate::volume::Volume;
use crate::work::WorkStep;
use crate::world::World;

/// Rounds after which everything must be at rest.
const MAX_ROUNDS: usize = 300;

/// Seconds between two publications of `$SYS`.
const SYS_INTERVAL_S: u32 = 500;

/// All rights, and the time, from one change to the next.
pub(super) struct Moment {
    pub(super) law: Rc<Law>,
    pub(super) now: Timestamp,
}

/// Request of a client on a connection.
#[derive(Clone, Copy)]
pub(super) enum PendingRequest {
    Publish(usize),
    Subscribe(&'static str),
}

/// A connection.
pub(super) struct Line {
    pub(super) who: Rc<Who>,
    /// The client; `None` for the program.
    pub(super) client: Option<usize>,
    pub(super) greeted: bool,
    /// The moment of its CONNECT.
    pub(super) began: usize,
    /// The moments when its worker has taken its events, and when its timers have fired.
    pub(super) exchanged: usize,
    timed: usize,
    pub(super) next_id: u16,
    /// With the moments as of which the broker knew the client's rights.
    pub(super) asked: Vec<(PacketId, PendingRequest, usize)>,
}

impl Line {
    pub(super) fn new(who: Rc<Who>, client: Option<usize>, now: usize) -> Line {
        let (began, exchanged, timed, asked) = (now, now, now, Vec::new());
        Line { who, client, greeted: false, began, exchanged, timed, next_id: 0, asked }
    }

    /// The moment as of which the broker knows its rights.
    pub(super) fn seen(&self) -> usize {
        self.exchanged.min(self.timed)
    }
}

/// A publication or a will.
pub(super) struct Message {
    pub(super) who: Rc<Who>,
    pub(super) topic: &'static str,
    pub(super) line: usize,
    pub(super) is_will: bool,
    /// The moment when it was sent.
    pub(super) said: usize,
    /// The moment when the broker has accepted it.
    pub(super) accepted: Option<usize>,
}

/// A world in which clients lie.
pub(crate) struct Stage {
    pub(super) world: World,
    pub(super) fakes: Arc<Fakes>,
    pub(super) moments: Vec<Moment>,
    pub(super) lines: Vec<Line>,
    pub(super) messages: Vec<Message>,
    /// Moments in which the broker has published wills, and how many this broker has.
    pub(super) wills: Vec<usize>,
    pub(super) published: u64,
    /// Whether the program's session is stored.
    pub(super) has_program: bool,
    pub(super) played: Played,
    pub(super) story: Story,
}

impl Stage {
    pub(crate) fn new(setup: &Setup, disk: Arc<dyn Volume>, story: Story) -> Result<Stage, String> {
        let fakes = Arc::new(Fakes::default());
        let limits = Limits { storage_stall_timeout: Duration::MAX, ..Limits::default() };
        let own = Arc::clone(&fakes);
        let settings = Settings {
            sys_interval_s: SYS_INTERVAL_S,
            access_control: Arc::new(move || own.access_control()),
            ..Settings::open(limits, Vec::new())
        };
        let world = World::new(disk, setup.workers, settings);
        let moments = vec![Moment { law: Rc::default(), now: world.now }];
        fakes.introduce(world.broker(), world.now);
        let mut stage = Stage {
            world,
            fakes,
            moments,
            lines: Vec::new(),
            messages: Vec::new(),
            wills: Vec::new(),
            published: 0,
            has_program: false,
            played: Played::default(),
            story,
        };
        // Its session is stored from the start.
        stage.open_program();
        stage.settle()?;
        Ok(stage)
    }
}

impl Simulation<Step> for Stage {
    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Lie(Lie(deed)) => self.perform(deed),
            Step::Work(WorkStep::Exchange { worker }) => {
                self.exchange(worker % self.world.workers())?;
            }
            Step::Work(WorkStep::Timers { worker }) => {
                self.fire_timers(worker % self.world.workers())
            }
            Step::Work(work) => drop(self.world.work(work)),
            Step::Wait { seconds } => {
                self.world.wait(Duration::from_secs(seconds));
                self.change(|_| ());
            }
            Step::Crash { workers } => {
                self.change(|law| law.service = None);
                self.world.crash(workers)?;
                (self.lines, self.published) = (Vec::new(), 0);
                self.fakes.introduce(self.world.broker(), self.world.now);
            }
            _ => {}
        }
        self.check_accepted()
    }

    fn finish(&mut self) -> Result<Played, String> {
        self.settle()?;
        Ok(self.played)
    }
}

impl Stage {
    pub(super) fn now(&self) -> usize {
        self.moments.len() - 1
    }

    /// Rights change, or the time.
    fn change(&mut self, change: impl FnOnce(&mut Law)) {
        let mut law = Law::clone(&self.moments[self.now()].law);
        change(&mut law);
        self.fakes.set_law(&law);
        self.moments.push(Moment { law: Rc::new(law), now: self.world.now });
    }

    /// The store changes, for one user or for all.
    fn change_store(&mut self, name: Option<&str>, change: impl FnOnce(&mut Law)) {
        self.change(change);
        self.fakes.set_users(self.world.broker(), name);
    }

    fn perform(&mut self, deed: Deed) {
        let (now, number) = (self.world.now, self.moments.len() as u64);
        match deed {
            Deed::Connect(asked) => {
                let own = |line: &Line| line.client == Some(asked.client);
                let old = self.lines.iter().rposition(own);
                self.connect(asked);
                old.filter(|_| !asked.stays).into_iter().for_each(|old| self.world.cut(old, true));
            }
            Deed::ConnectProgram => self.open_program(),
            Deed::Publish(line, topic, qos, retain) => {
                let line = self.pick(line);
                line.into_iter().for_each(|line| self.publish(line, topic, qos, retain));
            }
            Deed::Subscribe(line, filter) => {
                self.pick(line).into_iter().for_each(|line| self.subscribe(line, filter));
            }
            Deed::Cut(line) => {
                self.pick(line).into_iter().for_each(|line| self.world.cut(line, false));
            }
            Deed::Disconnect(line) => {
                self.pick(line).into_iter().for_each(|line| self.disconnect(line));
            }
            Deed::SetUser(name, user) => {
                self.change_store(Some(name), |law| law.set_user(name, user, number));
            }
            Deed::SetNameless(roles) => self.change_store(None, |law| law.nameless = roles),
            Deed::SetRole(role, rules) => self.change_store(None, |law| law.roles[role] = rules),
            Deed::SetDefault(open) => self.change_store(None, |law| law.store_open = open),
            Deed::SetRules(rules, whom, open) => {
                self.change(|law| (law.rules, law.whom, law.rules_open) = (rules, whom, open));
                self.fakes.set_rules(self.world.broker());
            }
            Deed::SetService(rules) => {
                self.change(|law| law.service = Some(rules));
                let broker = self.world.broker();
                self.lines.iter().for_each(|line| broker.rights_changed(line.who.id));
            }
            Deed::Ban(whom, seconds) => {
                self.change(|law| law.bans.push((whom, now.plus_secs(seconds))));
                self.fakes.set_bans(self.world.broker(), now);
            }
            Deed::Unban => {
                self.change(|law| law.bans.clear());
                self.fakes.set_bans(self.world.broker(), now);
            }
            Deed::SetAccount(account, good) => {
                self.change(|law| law.suspended[account] = !good);
                self.world.broker().recheck_external_users(|name| name == ACCOUNTS[account]);
            }
            Deed::Revoke(clients) => {
                self.change(|law| law.revoked = clients);
                self.fakes.set_revoked(self.world.broker());
            }
        }
    }

    /// The nth connection of a client that has received CONNACK.
    fn pick(&self, nth: usize) -> Option<usize> {
        let able = |at: &usize| {
            let line = &self.lines[*at];
            line.greeted && line.client.is_some() && self.world.is_open(*at)
        };
        let able: Vec<usize> = (0..self.lines.len()).filter(able).collect();
        (!able.is_empty()).then(|| able[nth % able.len()])
    }

    fn fire_timers(&mut self, worker: usize) {
        self.world.fire_timers(worker);
        let now = self.now();
        let lines = self.lines.iter_mut().zip(&self.world.lines);
        lines.filter(|(_, own)| own.worker == worker).for_each(|(line, _)| line.timed = now);
    }

    /// A worker takes its events and sends; clients read at once what it sends.
    fn exchange(&mut self, worker: usize) -> Result<usize, String> {
        let count = self.world.exchange(worker);
        self.check_accepted()?;
        for line in 0..self.lines.len() {
            if self.world.lines[line].worker != worker {
                continue;
            }
            while let Some(packet) = self.world.receive(line, StreamKey::CONTROL) {
                self.receive(line, &packet)?;
            }
            self.lines[line].exchanged = self.now();
            self.check_stays(line)?;
        }
        Ok(count)
    }

    /// Everything comes to rest.
    fn settle(&mut self) -> Result<(), String> {
        let mut quiet = 0;
        for _ in 0..MAX_ROUNDS {
            let mut moved = false;
            for line in self.world.readable() {
                while self.world.read(line, 0) {
                    moved = true;
                    self.check_accepted()?;
                }
            }
            for worker in 0..self.world.workers() {
                self.fire_timers(worker);
                moved |= self.exchange(worker)? > 0;
                self.world.end_turn(worker);
                self.check_accepted()?;
            }
            moved |= self.world.commit(usize::MAX) > 0;
            quiet = if moved { 0 } else { quiet + 1 };
            if quiet == 2 {
                self.played.sent = self.messages.len() as u64;
                return Ok(());
            }
        }
        Err("the world does not come to rest".to_owned())
    }
}
