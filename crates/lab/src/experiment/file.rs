//! The keys of an experiment file. `check` checks what they mean together.
//!
//! Every string that may hold placeholders keeps its place, so that a mistake found later still
//! names its line.

use serde::Deserialize;
use toml::Spanned;

use super::value::{Level, Levels, Ordered, Pair};
use crate::observe::Kind;
use crate::stats::Centre;

/// Conditions and the values they are limited to.
pub type Where = Ordered<Spanned<Levels>>;

/// One experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The file's name without `.toml`.
    #[serde(skip)]
    pub name: String,
    /// One line for lists and headings.
    pub title: String,
    /// The question, and how it is measured; empty lines separate paragraphs.
    #[serde(default)]
    pub about: String,
    /// Number of runs of each cell of the matrix.
    pub repetitions: Spanned<u32>,
    /// Seed of everything random, the links' decisions included.
    #[serde(default)]
    pub seed: u64,
    /// Longest time a sample may take, in seconds; what runs longer is stopped and kept as a timeout.
    pub timeout_s: Spanned<f64>,
    /// Share of a core that a cell uses; decides how many run side by side.
    #[serde(default = "one_core")]
    pub cores: Spanned<f64>,
    /// Share of the samples that run alone, to show the influence of other samples on the results.
    #[serde(default = "some_alone")]
    pub alone: Spanned<f64>,
    /// Machines, by name.
    pub hosts: Vec<Spanned<String>>,
    /// The links between them.
    #[serde(default)]
    pub links: Vec<Link>,
    /// Conditions and their values; each combination is a cell.
    #[serde(default)]
    pub matrix: Ordered<Vec<Spanned<Level>>>,
    /// Further placeholders that depend on a condition's value: condition, value, name, text.
    #[serde(default)]
    pub define: Ordered<Ordered<Ordered<Spanned<String>>>>,
    /// Combinations to leave out.
    #[serde(default)]
    pub skip: Vec<Where>,
    /// The only combinations to run; without it, all.
    #[serde(default)]
    pub only: Vec<Where>,
    /// A suite's further restriction of the combinations.
    #[serde(skip)]
    pub within: Vec<Where>,
    /// Requirements of combinations on this machine; combinations whose requirement is not met are left out.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// Files to write into the working folder of each sample.
    #[serde(default)]
    pub files: Ordered<Spanned<String>>,
    /// Programs, in the order in which they are started.
    pub roles: Ordered<Role>,
    /// Moments, each a line that a role prints.
    #[serde(default)]
    pub marks: Ordered<Mark>,
    /// Measures of each sample.
    pub measures: Ordered<Measure>,
    /// Pictures in the report.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Published results to compare with.
    #[serde(default)]
    pub compare: Vec<Compare>,
    /// Goals for measures.
    #[serde(default)]
    pub goals: Vec<Goal>,
}

/// A requirement of some combinations on the machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Need {
    /// A program and its arguments; exit code 0 means that the requirement is met. `{here}` is the only placeholder.
    pub run: Spanned<Vec<Spanned<String>>>,
    /// The message if it is not met.
    pub otherwise: String,
    /// The conditions that need it.
    #[serde(rename = "where")]
    pub only: Where,
}

fn one_core() -> Spanned<f64> {
    Spanned::new(0..0, 1.0)
}

fn some_alone() -> Spanned<f64> {
    Spanned::new(0..0, 0.1)
}

/// A link between two hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The two.
    pub between: Spanned<Pair>,
    /// Keys of the link model; values may hold placeholders.
    #[serde(default)]
    pub set: Ordered<Spanned<Level>>,
}

/// A program on a host.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// Where it runs.
    pub host: Spanned<String>,
    /// The program and its arguments; no shell.
    pub run: Spanned<Vec<Spanned<String>>>,
    /// Environment variables to add.
    #[serde(default)]
    pub env: Ordered<Spanned<String>>,
    /// Whether it runs until the other roles end and is then stopped, as a broker is.
    #[serde(default)]
    pub service: bool,
    /// A part of a line that it prints, on either output, when it is ready; later roles wait for it.
    pub ready: Option<Spanned<String>>,
    /// A role that must have ended before this one is started.
    pub after: Option<Spanned<String>>,
    /// Seconds to wait before it is started.
    #[serde(default)]
    pub delay_s: f64,
    /// Exit codes that are a success.
    #[serde(default = "zero")]
    pub exit: Vec<i32>,
    /// The conditions in which it takes part; without it, all.
    #[serde(default, rename = "where")]
    pub only: Where,
}

fn zero() -> Vec<i32> {
    vec![0]
}

/// A mark: the time of the first line of a role's output that contains a text.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Role.
    pub role: Spanned<String>,
    /// Text in the line. The `at_ns` (monotonic clock) of a JSON line takes precedence over its arrival.
    pub line: String,
}

/// A measure: one number per sample, computed from the roles' output, their use of resources, or the packets.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// For headings and axes.
    pub title: String,
    /// Unit, for people.
    pub unit: String,
    /// Where numbers come from.
    pub from: From,
    /// Role that prints or uses (`lines`, `process`).
    pub role: Option<Spanned<String>>,
    /// Field of its JSON lines: a number or a list of numbers (`lines`).
    pub field: Option<Spanned<String>>,
    /// Property of a process, of packets or of round trips that counts (`process`, `packets`, `spin`).
    pub what: Option<Spanned<What>>,
    /// Host whose packets count, both sent and received (`packets`).
    pub host: Option<Spanned<String>>,
    /// Kind of packets that count, such as `handshake`; all without it (`packets`).
    pub kind: Option<Spanned<Kind>>,
    /// Mark from which on it counts; from the beginning without it (all but `sum`,
    /// `difference` and `quotient`).
    pub since: Option<Spanned<String>>,
    /// Mark up to which it counts; to the end without it (as `since`).
    pub until: Option<Spanned<String>>,
    /// Seconds of the sample before which nothing counts (`lines`, `process`). Links' outages and
    /// changes of address are timed from the same moment.
    pub from_s: Option<Spanned<f64>>,
    /// Seconds of the sample after which nothing counts (`lines`, `process`).
    pub to_s: Option<Spanned<f64>>,
    /// The mark `until` means that the host received something: packets that it sends after the last packet received
    /// before the mark do not count (`packets`).
    #[serde(default)]
    pub received: bool,
    /// Measures to add up (`sum`), to subtract from the first (`difference`), or the first of which to divide by the
    /// second (`quotient`).
    #[serde(default)]
    pub of: Vec<Spanned<String>>,
    /// Rule that combines a sample's numbers.
    #[serde(default)]
    pub take: Take,
    /// Rule that combines the samples of a cell.
    #[serde(default)]
    pub centre: Centre,
    /// Factor on every number.
    #[serde(default = "default_factor")]
    pub scale: f64,
    /// Whether a sample without a number is a result, and not a failure: for example, nothing arrived, so there is no
    /// time.
    #[serde(default)]
    pub optional: bool,
    /// Direction that is better.
    #[serde(default)]
    pub better: Better,
    /// The conditions in which it is expected; without it, all.
    #[serde(default, rename = "where")]
    pub only: Where,
}

fn default_factor() -> f64 {
    1.0
}

/// Where a measure's numbers come from.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// JSON objects that a role prints, one per line.
    Lines,
    /// The kernel's statistics of a role's process.
    Process,
    /// Packets that the observer in the network saw.
    Packets,
    /// Round-trip times in milliseconds, measured by the observer from QUIC's latency spin bit.
    Spin,
    /// Seconds from one mark to another.
    Marks,
    /// Other measures, earlier in the file, added up.
    Sum,
    /// An earlier measure minus others.
    Difference,
    /// An earlier measure divided by another.
    Quotient,
}

/// A property of a process, of packets or of round trips.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Resident memory in KiB, over time.
    RssKib,
    /// Share of a core in percent, over time.
    CpuPct,
    /// CPU seconds used so far, over time.
    CpuS,
    /// Packets.
    Count,
    /// Bytes of IP packets.
    Bytes,
    /// Seconds from the first of them to the mark `until`, or to the last of them.
    Seconds,
    /// Milliseconds by which round trips that the spin bit shows differ from the path's own.
    Error,
}

/// Rule that combines a sample's numbers.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Take {
    /// Median, the default.
    #[default]
    Median,
    /// Mean.
    Mean,
    /// Smallest.
    Min,
    /// Largest.
    Max,
    /// 95th percentile.
    P95,
    /// 99th percentile.
    P99,
    /// Sum.
    Sum,
    /// The number of values.
    Count,
    /// The first.
    First,
    /// The last.
    Last,
}

/// Direction that is better.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Small figures.
    #[default]
    Lower,
    /// Large figures.
    Higher,
}

/// A figure of the report.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Heading of the figure.
    pub title: String,
    /// Kind of diagram.
    #[serde(rename = "as")]
    pub shape: Shape,
    /// Measure that it shows.
    pub measure: Spanned<String>,
    /// Condition along the horizontal axis (`bars`, `lines`, `boxes`).
    pub x: Option<Spanned<String>>,
    /// Condition shown by colour.
    pub series: Option<Spanned<String>>,
    /// One picture for each value of this condition.
    pub each: Option<Spanned<String>>,
    /// The only conditions it shows.
    #[serde(default, rename = "where")]
    pub only: Where,
    /// Logarithmic axis of the measure.
    #[serde(default)]
    pub log: bool,
    /// A sentence on how to read it.
    #[serde(default)]
    pub note: String,
}

/// Kind of diagram.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Bars with intervals of confidence.
    Bars,
    /// Lines with intervals of confidence over a condition with numbers.
    Lines,
    /// Box plots of all numbers of all samples.
    Boxes,
    /// Empirical distribution of all numbers of all samples.
    Ecdf,
    /// A measure over the time of a sample.
    Time,
}

/// A table of published results beside these.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// Heading of the comparison.
    pub title: String,
    /// CSV file, from the folder of the experiment file.
    pub paper: Spanned<String>,
    /// Authors, title, year, table.
    pub source: String,
    /// Column with the published figure.
    pub column: Spanned<String>,
    /// Columns of the paper and the text they are limited to.
    #[serde(default)]
    pub rows: Ordered<Spanned<String>>,
    /// Columns of the paper and the condition of ours that means the same.
    #[serde(default, rename = "match")]
    pub matching: Ordered<Spanned<String>>,
    /// The measure of this experiment.
    pub measure: Spanned<String>,
    /// Conditions of this experiment.
    #[serde(default, rename = "where")]
    pub only: Where,
    /// Conditions that differ in the cell to compare with: the result is then by how many percent this one is lower
    /// than that one.
    pub against: Option<Where>,
    /// Factor from the published unit to ours.
    #[serde(default = "default_factor")]
    pub scale: f64,
    /// Differences between the two experiments.
    pub differs: String,
    /// The goal: the least value (of a reduction) or the largest (of anything else).
    pub goal: Option<f64>,
}

/// A goal for a measure, by which the report judges each cell.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Heading of the goal.
    pub title: String,
    /// Measure that is judged.
    pub measure: Spanned<String>,
    /// The largest figure that meets it.
    pub at_most: Option<f64>,
    /// The smallest figure that meets it.
    pub at_least: Option<f64>,
    /// The best figure that is possible, as computed; `note` states how.
    pub limit: Option<f64>,
    /// Judges every sample instead of the cell's value; failures and timeouts miss the goal.
    #[serde(default)]
    pub every: bool,
    /// The only conditions it is for.
    #[serde(default, rename = "where")]
    pub only: Where,
    /// Conditions that differ in the cell to compare with: the judged value is then by how many percent this cell is
    /// lower than that one.
    pub against: Option<Where>,
    /// A sentence on what it means.
    #[serde(default)]
    pub note: String,
}

/// Several experiments under one name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// One line for lists and headings.
    pub title: String,
    /// Relation between the parts.
    #[serde(default)]
    pub about: String,
    /// Experiments, by name.
    pub parts: Vec<Spanned<String>>,
    /// The only combinations of the parts to take; all of them without it.
    #[serde(default)]
    pub only: Vec<Where>,
    /// Repetitions, instead of the parts' own.
    pub repetitions: Option<Spanned<u32>>,
    /// Longest time of a sample in seconds, instead of the parts' own.
    pub timeout_s: Option<Spanned<f64>>,
}
