//! Goals for measures, and which cells meet them.
//!
//! A cell whose samples all failed misses its goal; a cell that was not run is not judged. A goal with `against`
//! judges by how many percent a cell's result is lower than another cell's.

use super::compare::{base, lower_than};
use super::number::{short, tick};
use super::results::{CellResults, Results};
use crate::experiment::{Cell, Goal};
use crate::stats::Estimate;

/// A goal and its cells.
#[derive(Debug)]
pub(super) struct Verdicts<'a> {
    pub(super) goal: &'a Goal,
    /// Unit of what is judged.
    pub(super) unit: &'a str,
    pub(super) rows: Vec<Verdict<'a>>,
}

/// The verdict on a cell.
#[derive(Debug, PartialEq)]
pub(super) struct Verdict<'a> {
    pub(super) cell: &'a Cell,
    pub(super) figure: Option<Estimate>,
    /// The worst sample.
    pub(super) worst: Option<f64>,
    /// Samples that failed, and that timed out.
    pub(super) lost: (usize, usize),
    /// `None` if it was not run.
    pub(super) met: Option<bool>,
}

/// Judges an experiment's cells.
pub(super) fn judge(results: &Results) -> Vec<Verdicts<'_>> {
    let goals = results.experiment.goals.iter();
    let judged = goals.filter_map(|goal| {
        let measure = results.experiment.measures.get(goal.measure.get_ref())?;
        let cells = results
            .cells
            .iter()
            .filter(|cell| cell.cell.matches(&goal.only) && cell.cell.matches(&measure.only));
        let rows = cells.map(|cell| verdict(results, goal, cell)).collect();
        let unit = if goal.against.is_some() { "% lower" } else { &measure.unit };
        Some(Verdicts { goal, unit, rows })
    });
    judged.collect()
}

fn verdict<'a>(results: &'a Results, goal: &Goal, cell: &'a CellResults) -> Verdict<'a> {
    let name = goal.measure.get_ref();
    if let Some(against) = &goal.against {
        return related(goal, cell, base(results, cell, against));
    }
    let figure = cell.figures.get(name).copied();
    let values: Vec<f64> =
        results.samples_of(cell).filter_map(|sample| sample.values.get(name).copied()).collect();
    let worst = values.iter().copied().max_by(|a, b| excess(goal, *a).total_cmp(&excess(goal, *b)));
    let lost = cell.failed + cell.timeout;
    let meets = |value: f64| excess(goal, value) <= 0.0;
    let met = (cell.ok + lost > 0).then(|| {
        if goal.every {
            lost == 0 && worst.is_some_and(meets)
        } else {
            figure.is_some_and(|figure| meets(figure.value))
        }
    });
    Verdict { cell: &cell.cell, figure, worst, lost: (cell.failed, cell.timeout), met }
}

/// Judges a cell beside its base; both have to be run.
fn related<'a>(goal: &Goal, cell: &'a CellResults, base: Option<&CellResults>) -> Verdict<'a> {
    let base = base.filter(|base| base.ok + base.failed + base.timeout > 0);
    let was_run = cell.ok + cell.failed + cell.timeout > 0;
    let figure = base.and_then(|base| lower_than(cell, base, goal.measure.get_ref()));
    let met = (was_run && base.is_some())
        .then(|| figure.is_some_and(|figure| excess(goal, figure.value) <= 0.0));
    let of_base = base.map_or((0, 0), |base| (base.failed, base.timeout));
    let lost = (cell.failed + of_base.0, cell.timeout + of_base.1);
    Verdict { cell: &cell.cell, figure, worst: None, lost, met }
}

/// The goal's bounds as text, without the unit.
pub(super) fn bound(goal: &Goal) -> String {
    match (goal.at_least, goal.at_most) {
        (Some(least), Some(most)) => format!("{} to {}", tick(least), tick(most)),
        (Some(least), None) => format!("≥ {}", tick(least)),
        (None, most) => format!("≤ {}", most.map_or_else(String::new, tick)),
    }
}

/// Distance of a value from the nearer of the goal's bounds; negative if it is within both.
fn excess(goal: &Goal, value: f64) -> f64 {
    let above = goal.at_most.map(|most| value - most);
    let below = goal.at_least.map(|least| least - value);
    above.into_iter().chain(below).fold(f64::NEG_INFINITY, f64::max)
}

impl Verdicts<'_> {
    /// Cells that meet the goal, and cells that were run.
    pub(super) fn tally(&self) -> (usize, usize) {
        let count = |met: &[bool]| {
            self.rows.iter().filter(|row| row.met.is_some_and(|is| met.contains(&is))).count()
        };
        (count(&[true]), count(&[true, false]))
    }

    /// The cells that miss the goal, as text.
    pub(super) fn missed(&self) -> impl Iterator<Item = String> {
        let rows = self.rows.iter().filter(|row| row.met == Some(false));
        rows.map(|row| {
            let (title, cell, told) = (&self.goal.title, row.cell.label(), self.told(row));
            format!("{title}, {cell}: {told}; goal: {} {}", bound(self.goal), self.unit)
        })
    }

    /// The number that is judged of a cell.
    pub(super) fn judged(&self, row: &Verdict<'_>) -> Option<f64> {
        if self.goal.every { row.worst } else { row.figure.map(|figure| figure.value) }
    }

    /// The value shown for a cell: with `every`, a sample without a number misses the goal, whatever the others are.
    pub(super) fn told(&self, row: &Verdict<'_>) -> String {
        let judged = self.judged(row);
        let is_met = judged.is_some_and(|value| excess(self.goal, value) <= 0.0);
        match row.lost {
            (failed, timeout) if row.met == Some(false) && is_met => {
                let all = [(failed, "failed"), (timeout, "timed out")];
                let lost = all.into_iter().filter(|(count, _)| *count > 0);
                lost.map(|(count, how)| format!("{count} {how}")).collect::<Vec<_>>().join(", ")
            }
            _ => judged.map_or("no figure".to_owned(), short),
        }
    }

    /// The worst cell that was run.
    pub(super) fn furthest(&self) -> Option<&Verdict<'_>> {
        // Cells that miss the goal come first, and cells without a result are the worst.
        let far = |row: &Verdict<'_>| {
            self.judged(row).map_or(f64::INFINITY, |value| excess(self.goal, value))
        };
        let misses = |row: &Verdict<'_>| row.met == Some(false);
        let run = self.rows.iter().filter(|row| row.met.is_some());
        run.max_by(|a, b| misses(a).cmp(&misses(b)).then(far(a).total_cmp(&far(b))))
    }
}
