//! What campaigns and shrinking need to know of a schedule.

use crate::schedule::{Schedule, Step};

/// A schedule that a campaign can draw, play and shrink.
pub trait Script: Clone {
    /// A step; every step is valid in every state.
    type Step: Clone;

    /// Draws the schedule of a seed, of this many steps.
    fn draw(seed: u64, steps: usize) -> Self;

    /// Its steps.
    fn steps(&mut self) -> &mut Vec<Self::Step>;

    /// Its setup, for people.
    fn setting(&self) -> Vec<String>;

    /// Makes a failure list its steps.
    fn set_aloud(&mut self);
}

impl Script for Schedule {
    type Step = Step;

    fn draw(seed: u64, steps: usize) -> Schedule {
        Schedule::draw(seed, steps)
    }

    fn steps(&mut self) -> &mut Vec<Step> {
        &mut self.steps
    }

    fn setting(&self) -> Vec<String> {
        let setup = &self.setup;
        if setup.liars {
            return vec![format!("{} workers, and liars", setup.workers)];
        }
        let world = format!(
            "{} workers, at most {} in flight, a queue of {:?}",
            setup.workers, setup.max_in_flight, setup.queue
        );
        let troubles = format!(
            "large messages: {:?}, {:?}, internal session: {:?}",
            setup.large, setup.stalls, setup.internal
        );
        let clients = setup.natures.iter().enumerate();
        let clients = clients.map(|(index, nature)| format!("client {index}: {nature:?}"));
        [world, troubles].into_iter().chain(clients).collect()
    }

    fn set_aloud(&mut self) {
        self.aloud = true;
    }
}
