//! A schedule of any world: how it is drawn from a seed, and how it is played step by step until a promise is broken.

use std::cell::RefCell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use fastrand::Rng;

/// Setup of a world.
pub trait Setting: Clone + Debug {
    /// A step. Every step is valid in every state (it does nothing if impossible), so that steps can be removed to find
    /// the few that matter.
    type Step: Copy + Debug;

    /// Draws a setup and this many steps, more or less; the same ones for the same seed.
    fn draw(seed: u64, steps: usize) -> (Self, Vec<Self::Step>);
}

/// A schedule: a world and its steps, all drawn from a seed before the first is taken.
#[derive(Clone, Debug)]
pub struct Script<S: Setting> {
    /// The seed from which it was drawn; it also decides on what happens outside the steps, such as a disk's faults.
    pub seed: u64,
    /// The world.
    pub setup: S,
    /// Steps.
    pub steps: Vec<S::Step>,
    /// Whether a failure lists its steps.
    pub aloud: bool,
}

/// A world in which a schedule is played.
pub trait Simulation<Step> {
    /// Takes a step.
    ///
    /// # Errors
    /// A promise was broken.
    fn step(&mut self, step: Step) -> Result<(), String>;

    /// Ends all faults, lets everything come to rest, and checks every promise.
    ///
    /// # Errors
    /// One was broken.
    fn finish(&mut self) -> Result<Played, String>;
}

/// A failure, and its step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index of the step; the number of steps if the check at the end failed.
    pub step: usize,
    /// In words.
    pub what: String,
    /// The steps with the packets that clients read, if the schedule is played [aloud](Script::aloud).
    pub story: Vec<String>,
}

/// Counts of a complete schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Played {
    /// Packets that clients read.
    pub heard: u64,
    /// Messages sent.
    pub sent: u64,
    /// Refusals because storage was stalled.
    pub refused: u64,
    /// Number of clients found waiting because an internal session was behind.
    pub delayed: u64,
    /// Number of requests that liars were denied.
    pub denied: u64,
}

impl Played {
    /// Adds what another schedule has done.
    pub fn add(&mut self, other: Played) {
        self.heard += other.heard;
        self.sent += other.sent;
        self.refused += other.refused;
        self.delayed += other.delayed;
        self.denied += other.denied;
    }

    /// Events that clients have suffered, for people.
    pub(crate) fn troubles(&self) -> String {
        match (self.refused, self.delayed, self.denied) {
            (0, 0, 0) => String::new(),
            (refused, delayed, denied) => {
                format!(", {refused} refusals, {delayed} waits, {denied} denials")
            }
        }
    }
}

/// The events of a schedule that is played aloud, for people.
#[derive(Clone, Debug)]
pub struct Story(Option<Rc<RefCell<Vec<String>>>>);

impl Story {
    /// Adds an event, if the schedule is played aloud.
    pub fn add_event(&self, words: impl FnOnce() -> String) {
        if let Story(Some(lines)) = self {
            lines.borrow_mut().push(words());
        }
    }
}

impl<S: Setting> Script<S> {
    /// Draws the schedule of a seed, of this many steps.
    pub fn draw(seed: u64, steps: usize) -> Script<S> {
        let (setup, steps) = S::draw(seed, steps);
        Script { seed, setup, steps, aloud: false }
    }

    /// Plays the schedule in the world that `begin` makes.
    ///
    /// # Errors
    /// Says which promise was broken first.
    pub fn play<C: Simulation<S::Step>>(
        &self,
        begin: impl FnOnce(Story) -> Result<C, String>,
    ) -> Result<Played, Failure> {
        let lines: Option<Rc<RefCell<Vec<String>>>> = self.aloud.then(Rc::default);
        let story = Story(lines.clone());
        let mut at = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut simulation = begin(story.clone())?;
            for step in &self.steps {
                story.add_event(|| format!("{step:?}"));
                simulation.step(*step)?;
                at += 1;
            }
            simulation.finish()
        }));
        let what = match outcome {
            Ok(Ok(played)) => return Ok(played),
            Ok(Err(what)) => what,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
                format!("panic: {}", text.unwrap_or_default())
            }
        };
        Err(Failure { step: at, what, story: lines.map(|lines| lines.take()).unwrap_or_default() })
    }
}

/// The random numbers of a seed for one kind of world: neighbouring seeds must have unrelated schedules.
pub(crate) fn rng_of(seed: u64, world: u64) -> Rng {
    Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ world)
}

/// The index of a weight, drawn as often as it says.
pub(crate) fn weighted(rng: &mut Rng, weights: &[u32]) -> usize {
    let mut at = rng.u32(..weights.iter().sum::<u32>());
    let is_reached = |weight: &u32| {
        let rest = at.checked_sub(*weight);
        at = rest.unwrap_or(0);
        rest.is_none()
    };
    weights.iter().position(is_reached).unwrap_or(0)
}

/// Leaves out some kinds of steps, each with a chance of one in `one_in`, and makes others frequent, so that the rest
/// meet more often.
pub(crate) fn vary(
    rng: &mut Rng,
    weights: &mut [u32],
    one_in: u8,
    may_miss: impl Fn(usize) -> bool,
) {
    for (kind, weight) in weights.iter_mut().enumerate() {
        if may_miss(kind) && rng.u8(..one_in) == 0 {
            *weight = 0;
        } else if rng.u8(..4) == 0 {
            *weight *= 3;
        }
    }
}
