//! Compares published results with ours: rows of a paper's CSV file, matched with cells.

use super::ReportError;
use super::number::short;
use super::results::{CellResults, Results};
use crate::experiment::{Compare, Where};
use crate::stats::Estimate;

/// A computed comparison.
#[derive(Debug)]
pub(super) struct Table<'a> {
    pub(super) compare: &'a Compare,
    /// Columns of the paper that distinguish its rows.
    pub(super) keys: Vec<String>,
    pub(super) rows: Vec<Row>,
}

/// A published result and ours.
#[derive(Debug, PartialEq)]
pub(super) struct Row {
    /// Values of the key columns.
    pub(super) key: Vec<String>,
    pub(super) published: f64,
    /// `None` if there is none.
    pub(super) ours: Option<Estimate>,
    /// Samples of ours that failed, and that timed out.
    pub(super) lost: (usize, usize),
}

impl Row {
    /// Our result divided by the published one.
    pub(super) fn ratio(&self) -> Option<f64> {
        let ours = self.ours?.value;
        (self.published != 0.0).then(|| ours / self.published)
    }
}

impl Table<'_> {
    /// Whether our result meets the goal; `None` without goal or result.
    pub(super) fn meets(&self, row: &Row) -> Option<bool> {
        let (goal, ours) = (self.compare.goal?, row.ours?.value);
        Some(if self.compare.against.is_some() { ours >= goal } else { ours <= goal })
    }

    /// The rows that miss the goal, as text.
    pub(super) fn missed(&self) -> impl Iterator<Item = String> {
        let rows = self.rows.iter().filter(|row| self.meets(row) == Some(false));
        rows.map(|row| {
            let ours = row.ours.map_or("no figure".to_owned(), |ours| short(ours.value));
            format!("{}, {}: {ours}", self.compare.title, row.key.join(" "))
        })
    }
}

/// Computes a comparison.
pub(super) fn table<'a>(
    results: &'a Results,
    compare: &'a Compare,
) -> Result<Table<'a>, ReportError> {
    let path = results.folder.join(compare.paper.get_ref());
    let broken = |error: csv::Error| ReportError::Paper { path: path.clone(), source: error };
    let mut reader = csv::Reader::from_path(&path).map_err(broken)?;
    let columns = reader.headers().map_err(broken)?.clone();
    let column = |name: &str| columns.iter().position(|column| column == name);
    let value_column = column(compare.column.get_ref());
    let keys: Vec<String> = compare.matching.keys().map(str::to_owned).collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(broken)?;
        let cell = |name: &str| column(name).and_then(|index| record.get(index)).unwrap_or("");
        if !compare.rows.iter().all(|(name, value)| cell(name) == value.get_ref()) {
            continue;
        }
        let published =
            value_column.and_then(|index| record.get(index)?.trim().parse::<f64>().ok());
        let Some(published) = published else { continue };
        let key: Vec<String> = keys.iter().map(|name| cell(name).to_owned()).collect();
        let (ours, lost) = ours(results, compare, &key);
        rows.push(Row { key, published: published * compare.scale, ours, lost });
    }
    Ok(Table { compare, keys, rows })
}

/// Our result for a row, and its missing samples.
fn ours(
    results: &Results,
    compare: &Compare,
    key: &[String],
) -> (Option<Estimate>, (usize, usize)) {
    let conditions = compare.matching.iter().map(|(_, condition)| condition.get_ref().as_str());
    let wanted: Vec<(&str, &str)> = conditions.zip(key.iter().map(String::as_str)).collect();
    let find = |only: &[&Where]| {
        results.cells.iter().find(|cell| {
            let pinned = wanted.iter().all(|(condition, value)| {
                // The second set takes precedence over the row.
                only.iter().any(|only| only.get(condition).is_some())
                    || cell.cell.get(condition).is_some_and(|ours| same(ours, value))
            });
            pinned && only.iter().all(|only| cell.cell.matches(only))
        })
    };
    let Some(cell) = find(&[&compare.only]) else { return (None, (0, 0)) };
    let measure = compare.measure.get_ref();
    let mut lost = (cell.failed, cell.timeout);
    let Some(against) = &compare.against else {
        return (cell.figures.get(measure).copied(), lost);
    };
    let Some(base) = base(results, cell, against) else { return (None, lost) };
    lost = (lost.0 + base.failed, lost.1 + base.timeout);
    (lower_than(cell, base, measure), lost)
}

/// The cell that differs from `cell` in the conditions of `against`.
pub(super) fn base<'a>(
    results: &'a Results,
    cell: &CellResults,
    against: &Where,
) -> Option<&'a CellResults> {
    results.cells.iter().find(|other| {
        other.cell.matches(against)
            && cell.cell.0.iter().all(|(condition, value)| {
                against.get(condition).is_some() || other.cell.get(condition) == Some(value)
            })
    })
}

/// By how many percent a cell's result is lower than its base's.
pub(super) fn lower_than(
    cell: &CellResults,
    base: &CellResults,
    measure: &str,
) -> Option<Estimate> {
    Some(reduction(cell.figures.get(measure)?, base.figures.get(measure)?))
}

/// By how many percent one result is lower than another. The interval is conservative: from the worst to the best of
/// both intervals.
fn reduction(ours: &Estimate, base: &Estimate) -> Estimate {
    let pct = |ours: f64, base: f64| 100.0 * (1.0 - ours / base);
    Estimate {
        value: pct(ours.value, base.value),
        low: pct(ours.high, base.low),
        high: pct(ours.low, base.high),
        count: ours.count.min(base.count),
    }
}

/// Condition values and a paper's entries are the same if they are equal as text or as numbers; papers write `_`
/// where experiment files have `-`.
fn same(ours: &str, published: &str) -> bool {
    match (ours.parse::<f64>(), published.parse::<f64>()) {
        (Ok(ours), Ok(published)) => ours == published,
        _ => ours.replace('-', "_") == published.replace('-', "_"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_are_in_percent_of_the_base() {
        let figure = |value, low, high| Estimate { value, low, high, count: 5 };
        let r = reduction(&figure(4.0, 3.0, 5.0), &figure(10.0, 8.0, 10.0));
        assert_eq!((r.value, r.low, r.high), (60.0, 37.5, 70.0));
    }

    #[test]
    fn entries_match_by_meaning() {
        assert!(same("long-distance", "long_distance") && same("10", "10.0"));
        assert!(!same("10", "20") && !same("wired", "wireless"));
    }
}
