//! The page: headings, figures, tables, and where and how it was measured.

use std::collections::BTreeMap;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::compare::{Row, Table};
use super::figure::{RenderedFigure, draw};
use super::goal::{Verdicts, bound};
use super::number::{day, short, with_interval};
use super::results::{CellResults, Disturbance, Report, Results};
use crate::experiment::{Better, Cell, Measure};
use crate::run::{Outcome, Sample};
use crate::stats::{Centre, Estimate, median, quantile, share, sorted};

pub(super) const STYLE: &str = include_str!("style.css");

/// Reasons of failures that a page lists per part.
const MAX_REASONS: usize = 20;

/// The most measures side by side in a table: with conditions and intervals, more would be wider than a screen of
/// 1440 pixels (`tests/browser/pages.test.mjs`).
const MEASURES_PER_TABLE: usize = 8;

/// A sample whose emulator was later than this at the 99th percentile, in µs, is reported as late.
const LATE_US: f64 = 2000.0;

/// Writes the page.
pub(super) fn page(
    all: &Report,
    tables: &[Vec<Table<'_>>],
    verdicts: &[Vec<Verdicts<'_>>],
) -> String {
    let several = all.parts.len() > 1;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (all.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (all.title) }
                    (paragraphs(&all.about))
                    (overview(all))
                }
                @if several {
                    nav aria-label="Parts" {
                        ol {
                            @for part in &all.parts {
                                li { a href={ "#" (part.experiment.name) } { (part.experiment.title) } }
                            }
                        }
                    }
                }
                main {
                    @for (index, part) in all.parts.iter().enumerate() {
                        (section(part, &tables[index], &verdicts[index], index, several))
                    }
                }
                footer { (method()) }
            }
        }
    };
    page.into_string()
}

fn paragraphs(text: &str) -> Markup {
    html! {
        @for paragraph in text.split("\n\n").map(str::trim).filter(|text| !text.is_empty()) {
            p { (paragraph) }
        }
    }
}

fn overview(all: &Report) -> Markup {
    let count = |outcome| all.parts.iter().map(|part| part.count(outcome)).sum::<usize>();
    let samples: Vec<&Sample> = all.parts.iter().flat_map(|part| &part.samples).collect();
    let seconds = samples.iter().map(|sample| sample.took_s).sum::<f64>();
    let first = samples.iter().map(|sample| sample.began_s).reduce(f64::min);
    let newest = samples.iter().max_by(|a, b| a.began_s.total_cmp(&b.began_s));
    html! {
        p.overview {
            (tally(count(Outcome::Ok), count(Outcome::Failed), count(Outcome::Timeout)))
            " · " (format_duration(seconds)) " of measuring"
            @if let Some(first) = first { " · begun " (day(first)) }
            @if let Some(newest) = newest {
                " · Fulmar " (newest.environment.version) " · " (newest.environment.kernel)
                " · " (newest.environment.cores) " × " (newest.environment.cpu)
            }
            " · the same data as " a href="report.csv" { "CSV" } " and " a href="report.xlsx" { "workbook" }
        }
    }
}

/// A duration in a suitable unit.
fn format_duration(seconds: f64) -> String {
    match seconds {
        s if s < 100.0 => format!("{} s", short(s)),
        s if s < 6000.0 => format!("{:.0} minutes", s / 60.0),
        s => format!("{} hours", short(s / 3600.0)),
    }
}

fn tally(ok: usize, failed: usize, timeout: usize) -> Markup {
    html! {
        span.tally {
            (ok) " good samples"
            @if failed > 0 { ", " strong.bad { (failed) " failed" } }
            @if timeout > 0 { ", " strong.bad { (timeout) " timed out" } }
            @if failed + timeout == 0 { ", none failed or timed out" }
        }
    }
}

/// The pictures of an experiment, which is the `index`th of the page.
pub(super) fn figures(part: &Results, index: usize) -> Vec<RenderedFigure> {
    let figures = part.experiment.figures.iter().enumerate();
    figures.flat_map(|(number, figure)| draw(part, figure, &format!("p{index}f{number}"))).collect()
}

fn section(
    part: &Results,
    tables: &[Table<'_>],
    verdicts: &[Verdicts<'_>],
    index: usize,
    several: bool,
) -> Markup {
    let drawn = figures(part, index);
    html! {
        section id=(part.experiment.name) {
            @if several { h2 { (part.experiment.title) } }
            (paragraphs(&part.experiment.about))
            @if several {
                p.overview {
                    (tally(part.count(Outcome::Ok), part.count(Outcome::Failed), part.count(Outcome::Timeout)))
                    ", " (part.cells.len()) " cells"
                }
            }
            (goals(part, verdicts))
            @for (number, table) in tables.iter().enumerate() {
                (comparison(part, table, tables.get(number + 1)))
            }
            div.figures { @for (number, drawn) in drawn.iter().enumerate() { (picture(drawn, number + 1)) } }
            (figures_table(part))
            (troubles(part))
            (disturbance(part))
            (environment(part))
        }
    }
}

fn goals(part: &Results, verdicts: &[Verdicts<'_>]) -> Markup {
    let limited = verdicts.iter().any(|one| one.goal.limit.is_some());
    html! {
        @if !verdicts.is_empty() {
            h3 { "Goals" }
            div.scroll { table.goals {
                thead { tr {
                    th scope="col" { "goal" }
                    th.number scope="col" { "bound" }
                    @if limited { th.number scope="col" { "computed limit" } }
                    th.number scope="col" { "furthest cell" }
                    th scope="col" { "verdict" }
                } }
                tbody { @for one in verdicts { (goal(part, one, limited)) } }
            } }
            @for one in verdicts.iter().filter(|one| !one.goal.note.is_empty()) {
                p.note { strong { (one.goal.title) ". " } (one.goal.note) }
            }
            details.cells {
                summary { "The goals cell by cell" }
                @for one in verdicts { (goal_cells(part, one)) }
            }
        }
    }
}

fn goal(part: &Results, verdicts: &Verdicts<'_>, limited: bool) -> Markup {
    let (met, of) = verdicts.tally();
    let furthest = verdicts.furthest();
    html! {
        tr {
            th scope="row" { (verdicts.goal.title) @if verdicts.goal.every { ", each sample" } }
            td.number { (bound(verdicts.goal)) " " span.unit { (verdicts.unit) } }
            @if limited { td.number { (verdicts.goal.limit.map_or("–".to_owned(), short)) } }
            td.number {
                @if let Some(row) = furthest {
                    (verdicts.told(row))
                    @if verdicts.rows.len() > 1 { br; span.unit { (named(part, row.cell)) } }
                } @else { "–" }
            }
            td {
                @if of == 0 { "not measured" }
                @else if met == of { span.good { "met" } @if of > 1 { " by all " (of) } }
                @else { strong.bad { "missed" } @if of > 1 { " by " (of - met) " of " (of) } }
            }
        }
    }
}

/// The label of a cell for people.
fn named(part: &Results, cell: &Cell) -> String {
    let labels = cell.0.iter().map(|(condition, level)| part.label(condition, level));
    if cell.0.is_empty() { cell.label() } else { labels.collect::<Vec<_>>().join(", ") }
}

fn goal_cells(part: &Results, verdicts: &Verdicts<'_>) -> Markup {
    html! {
        h4 { (verdicts.goal.title) ": " (bound(verdicts.goal)) " " (verdicts.unit) }
        div.scroll { table {
            thead { tr {
                th scope="col" { "cell" }
                th.number scope="col" { "figure (95 %)" }
                th.number scope="col" { "worst sample" }
                th scope="col" { "samples" }
                th scope="col" { "verdict" }
            } }
            tbody { @for row in &verdicts.rows { tr {
                th scope="row" { (named(part, row.cell)) }
                td.number { (row.figure.map_or("–".to_owned(), |figure| with_interval(&figure))) }
                td.number { (row.worst.map_or("–".to_owned(), short)) }
                td { (counted(row.figure.map_or(0, |figure| figure.count), row.lost.0, row.lost.1)) }
                td { (verdict(row.met)) }
            } } }
        } }
    }
}

fn verdict(met: Option<bool>) -> Markup {
    html! {
        @match met {
            Some(true) => span.good { "met" },
            Some(false) => strong.bad { "missed" },
            None => "–",
        }
    }
}

fn picture(drawn: &RenderedFigure, number: usize) -> Markup {
    html! {
        figure {
            figcaption {
                strong { "Figure " (number) ". " (drawn.title) }
                @if !drawn.note.is_empty() { " " (drawn.note) }
            }
            div.picture role="img" aria-label=(drawn.alternative) {
                div.wide { (PreEscaped(&drawn.wide)) }
                div.narrow { (PreEscaped(&drawn.narrow)) }
            }
            details { summary { "In words" } p { (drawn.alternative) } }
        }
    }
}

/// A table; a remark that several successive tables share is under the last of them.
fn comparison(part: &Results, table: &Table<'_>, next: Option<&Table<'_>>) -> Markup {
    let measure = part.experiment.measures.get(table.compare.measure.get_ref());
    let unit = match (&table.compare.against, measure) {
        (Some(_), _) => "% lower",
        (None, Some(measure)) => measure.unit.as_str(),
        (None, None) => "",
    };
    let missing = table.rows.iter().all(|row| row.ours.is_none());
    html! {
        div.comparison {
            h3 { "Published and ours: " (table.compare.title) }
            div.scroll {
                table {
                    thead {
                        tr {
                            @for key in &table.keys { th scope="col" { (key.replace('_', " ")) } }
                            th.number scope="col" { "published" br; span.unit { (unit) } }
                            th.number scope="col" { "ours (95 %)" br; span.unit { (unit) } }
                            th.number scope="col" { "ours ÷" br; "published" }
                            th.bars scope="col" { span.visually-hidden { "both as bars" } }
                            @if let Some(goal) = table.compare.goal {
                                th scope="col" {
                                    "goal: " @if table.compare.against.is_some() { "≥ " } @else { "≤ " } (short(goal))
                                }
                            }
                            th scope="col" { "samples" }
                        }
                    }
                    tbody { @for row in &table.rows { (compared_row(table, row)) } }
                }
            }
            @if missing { p.note { "Nothing of ours was measured for this table." } }
            @if !next.is_some_and(|next| same_notes(table, next)) {
                p.note { strong { "What differs. " } (table.compare.differs) }
                p.note { strong { "Source. " } (table.compare.source) }
            }
        }
    }
}

fn same_notes(one: &Table<'_>, other: &Table<'_>) -> bool {
    one.compare.differs == other.compare.differs && one.compare.source == other.compare.source
}

fn compared_row(table: &Table<'_>, row: &Row) -> Markup {
    let largest = table
        .rows
        .iter()
        .flat_map(|row| [Some(row.published), row.ours.map(|ours| ours.value)])
        .flatten()
        .fold(1e-12, f64::max);
    let width = |value: f64| format!("width:{:.1}%", 100.0 * value.max(0.0) / largest);
    html! {
        tr {
            @for key in &row.key { th scope="row" { (key.replace('_', " ")) } }
            td.number { (short(row.published)) }
            td.number { (row.ours.map_or("–".to_owned(), |ours| with_interval(&ours))) }
            td.number { (row.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}"))) }
            td.bars aria-hidden="true" {
                span.published style=(width(row.published)) {}
                @if let Some(ours) = row.ours { span.ours style=(width(ours.value)) {} }
            }
            @if table.compare.goal.is_some() {
                td { (verdict(table.meets(row))) }
            }
            td { (counted(row.ours.map_or(0, |ours| ours.count), row.lost.0, row.lost.1)) }
        }
    }
}

/// Samples behind a figure, and those that have none.
fn counted(count: usize, failed: usize, timeout: usize) -> Markup {
    html! {
        (count)
        @if failed > 0 { ", " strong.bad { (failed) " failed" } }
        @if timeout > 0 { ", " strong.bad { (timeout) " timed out" } }
    }
}

fn figures_table(part: &Results) -> Markup {
    let conditions: Vec<&str> = part.experiment.matrix.keys().collect();
    let measures: Vec<(&str, &Measure)> = part.experiment.measures.iter().collect();
    html! {
        details open[part.cells.len() <= 24] {
            summary { h3 { "All figures" } }
            @for measures in measures.chunks(MEASURES_PER_TABLE) { (figures_part(part, &conditions, measures)) }
            p.note {
                "In brackets the 95 % interval: of medians by bootstrap over the samples, of means by "
                "Student’s t. ↓ small is better, ↑ large is better."
            }
        }
    }
}

/// All cells with some of the measures.
fn figures_part(part: &Results, conditions: &[&str], measures: &[(&str, &Measure)]) -> Markup {
    html! {
        div.scroll {
            table.all {
                thead {
                    tr {
                        @for condition in conditions { th scope="col" { (condition.replace('_', " ")) } }
                        @for (_, measure) in measures {
                            th.number scope="col" {
                                (measure.title) br;
                                span.unit {
                                    (measure.unit) ", "
                                    @match measure.centre { Centre::Median => "median", Centre::Mean => "mean" }
                                    @match measure.better { Better::Lower => " ↓", Better::Higher => " ↑" }
                                }
                            }
                        }
                        th scope="col" { "samples" }
                    }
                }
                tbody {
                    @for cell in &part.cells {
                        tr {
                            @for (condition, level) in &cell.cell.0 {
                                th scope="row" { (part.label(condition, level)) }
                            }
                            @for (name, _) in measures {
                                td.number { (cell.figures.get(*name).map_or("–".to_owned(), with_interval)) }
                            }
                            td { (counted(cell.ok, cell.failed, cell.timeout)) }
                        }
                    }
                }
            }
        }
    }
}

fn troubles(part: &Results) -> Markup {
    let bad = |cell: &&CellResults| cell.failed + cell.timeout > 0;
    let cells: Vec<&CellResults> = part.cells.iter().filter(bad).collect();
    if cells.is_empty() {
        return html! {};
    }
    let samples: Vec<&Sample> = part.samples.iter().filter(|sample| !sample.is_ok()).collect();
    let rate = |cell: &CellResults| {
        let lost = (cell.failed + cell.timeout) as u64;
        share(lost, lost + cell.ok as u64).map_or("–".to_owned(), |share| {
            let pct = |x: f64| 100.0 * x;
            let Estimate { value, low, high, count } = share;
            with_interval(&Estimate { value: pct(value), low: pct(low), high: pct(high), count })
        })
    };
    html! {
        h3 { "Failures and timeouts" }
        div.scroll {
            table {
                thead { tr {
                    th scope="col" { "cell" } th.number scope="col" { "failed" }
                    th.number scope="col" { "timed out" } th.number scope="col" { "share in % (95 %, Wilson)" }
                } }
                tbody { @for cell in &cells { tr {
                    th scope="row" { (cell.cell.label()) } td.number { (cell.failed) }
                    td.number { (cell.timeout) } td.number { (rate(cell)) }
                } } }
            }
        }
        details {
            summary { "Reasons" }
            ul.reasons {
                @for sample in samples.iter().take(MAX_REASONS) {
                    li { code { (labels(sample)) " #" (sample.repetition) } ": " (sample.reason) }
                }
                @if samples.len() > MAX_REASONS { li { "and " (samples.len() - MAX_REASONS) " more in samples.jsonl" } }
            }
        }
    }
}

fn labels(sample: &Sample) -> String {
    let parts: Vec<String> =
        sample.cell.iter().map(|(name, value)| format!("{name}={value}")).collect();
    parts.join(" ")
}

fn disturbance(part: &Results) -> Markup {
    let measures = part.experiment.measures.iter();
    let measured: Vec<(&Measure, Vec<Disturbance<'_>>)> = measures
        .map(|(name, measure)| (measure, part.disturbances(name)))
        .filter(|(_, cells)| !cells.is_empty())
        .collect();
    html! {
        @if !measured.is_empty() {
            details {
                summary { h3 { "What running side by side changes" } }
                div.scroll { table {
                    thead { tr {
                        th scope="col" { "measure" }
                        th.number scope="col" { "cells measured both ways" }
                        th.number scope="col" { "median change" }
                        th.number scope="col" { "largest change" }
                    } }
                    tbody { @for (measure, cells) in &measured { (disturbed(measure, cells)) } }
                } }
                p.note {
                    "Medians of the samples that ran beside others against those that ran alone. A change "
                    "includes the spread from sample to sample, which with few samples is most of it."
                }
                @for (measure, cells) in &measured { (disturbed_cells(part, measure, cells)) }
            }
        }
    }
}

fn disturbed(measure: &Measure, cells: &[Disturbance<'_>]) -> Markup {
    let changes: Vec<f64> = cells.iter().filter_map(Disturbance::change_pct).collect();
    let largest = changes.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
    html! {
        tr {
            th scope="row" { (measure.title) }
            td.number { (cells.len()) }
            td.number { (median(&changes).map_or("–".to_owned(), signed)) }
            td.number { (largest.map_or("–".to_owned(), signed)) }
        }
    }
}

fn disturbed_cells(part: &Results, measure: &Measure, cells: &[Disturbance<'_>]) -> Markup {
    let figure =
        |(value, count): (f64, usize)| html! { (short(value)) " " span.unit { "of " (count) } };
    html! {
        details {
            summary { (measure.title) ", cell by cell" }
            div.scroll { table {
                thead { tr {
                    th scope="col" { "cell" }
                    th.number scope="col" { "alone" br; span.unit { (measure.unit) } }
                    th.number scope="col" { "beside others" br; span.unit { (measure.unit) } }
                    th.number scope="col" { "change" }
                } }
                tbody { @for one in cells { tr {
                    th scope="row" { (named(part, one.cell)) }
                    td.number { (figure(one.alone)) }
                    td.number { (figure(one.beside)) }
                    td.number { (one.change_pct().map_or("–".to_owned(), signed)) }
                } } }
            } }
        }
    }
}

/// A change in percent.
fn signed(pct: f64) -> String {
    format!("{pct:+.1} %").replace('-', "−")
}

fn environment(part: &Results) -> Markup {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for sample in &part.samples {
        let e = &sample.environment;
        let kind = format!(
            "Fulmar {}, {}, {} × {}, {} MiB, TCP {}",
            e.version,
            e.kernel,
            e.cores,
            e.cpu,
            e.memory_mib,
            if e.tcp.is_empty() { "unknown" } else { &e.tcp }
        );
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let spread = |of: &dyn Fn(&Sample) -> Option<f64>| {
        let values = sorted(&part.samples.iter().filter_map(of).collect::<Vec<_>>());
        let at = |q| quantile(&values, q).map_or("–".to_owned(), short);
        (!values.is_empty()).then(|| format!("median {}, worst {}", at(0.5), at(1.0)))
    };
    let load = spread(&|sample| Some(sample.environment.load));
    let late = spread(&|sample| sample.lateness.map(|late| late.p99_us));
    let beside = spread(&|sample| Some(sample.environment.beside as f64));
    let late_cells = late_cells(part);
    html! {
        details {
            summary { h3 { "Where it was measured" } }
            ul {
                @for (kind, count) in &kinds { li { (kind) ": " (count) " samples" } }
                @if let Some(load) = load { li { "Load of the machine before a sample: " (load) } }
                @if let Some(beside) = beside { li { "Other samples at the same time: " (beside) } }
                @match late {
                    Some(late) => li { "How late the emulator was, 99th percentile of a sample, in µs: " (late) },
                    None => li { "No emulator: nothing delayed the packets on purpose." },
                }
                @if !late_cells.is_empty() {
                    li {
                        "Late: in these cells the emulator was more than " (short(LATE_US / 1000.0)) " ms late at "
                        "the 99th percentile of a sample, so that their figures are worse than they should be: "
                        (late_cells.join("; "))
                    }
                }
            }
        }
    }
}

/// Cells with a sample whose packets left the emulator late, and how many of their samples did.
fn late_cells(part: &Results) -> Vec<String> {
    let mut cells: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for sample in &part.samples {
        let words: Vec<&str> = sample.cell.values().map(String::as_str).collect();
        let (late, all) = cells.entry(words.join(" ")).or_default();
        *late += usize::from(sample.lateness.is_some_and(|late| late.p99_us > LATE_US));
        *all += 1;
    }
    let late = cells.into_iter().filter(|(_, (late, _))| *late > 0);
    late.map(|(cell, (late, all))| format!("{cell} ({late} of {all})")).collect()
}

fn method() -> Markup {
    html! {
        p {
            "Each sample is a run of all programs in a network of its own. A sample without a number "
            "for every measure is a failure; failures and timeouts are counted and never averaged "
            "away. Every raw number is in samples.jsonl beside this page."
        }
    }
}
