//! Checks what the keys of an experiment file mean together. Each check names the place of the mistake.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;

use super::error::{Mistake, Source};
use super::file::{
    Compare, Experiment, Figure, From, Goal, Link, Measure, Role, Shape, Suite, What, Where,
};
use super::value::Ordered;
use super::{Cell, Template, find, host_and_changes};
use crate::network::NetworkFactory;
use crate::words::no_such;

/// The most cells of an experiment.
const MAX_CELLS: usize = 10_000;

/// The most repetitions of a cell.
const MAX_REPETITIONS: u32 = 10_000;

/// The longest time for one sample, in seconds.
const MAX_TIMEOUT_S: f64 = 86_400.0;

/// Placeholders that every experiment has, besides addresses and ports.
const BUILTIN: [&str; 5] = ["dir", "here", "fulmar", "seed", "repetition"];

type Checked = Result<(), Mistake>;

pub(super) fn suite(source: Source<'_>, suite: &Suite, folder: &Path) -> Checked {
    for part in &suite.parts {
        let path = find(folder, part.get_ref());
        if !path.is_file() {
            let message =
                format!("no experiment `{}`: {} is not a file", part.get_ref(), path.display());
            return Err(source.mistake(part.span(), message));
        }
    }
    suite.repetitions.as_ref().map_or(Ok(()), |number| repetitions(source, number))?;
    suite.timeout_s.as_ref().map_or(Ok(()), |seconds| timeout(source, seconds))
}

fn repetitions(source: Source<'_>, number: &Spanned<u32>) -> Checked {
    if (1..=MAX_REPETITIONS).contains(number.get_ref()) {
        return Ok(());
    }
    let message =
        format!("`repetitions` is {}; allowed is 1 to {MAX_REPETITIONS}", number.get_ref());
    Err(source.mistake(number.span(), message))
}

fn timeout(source: Source<'_>, seconds: &Spanned<f64>) -> Checked {
    range(source, "timeout_s", seconds, 0.001, MAX_TIMEOUT_S)
}

fn range(source: Source<'_>, key: &str, value: &Spanned<f64>, low: f64, high: f64) -> Checked {
    if (low..=high).contains(value.get_ref()) {
        return Ok(());
    }
    let message = format!("`{key}` is {}; allowed is {low} to {high}", value.get_ref());
    Err(source.mistake(value.span(), message))
}

pub(super) fn experiment(
    source: Source<'_>,
    experiment: &Experiment,
    folder: &Path,
    networks: Option<&dyn NetworkFactory>,
) -> Checked {
    let check = Check { source, experiment };
    check.numbers()?;
    check.names()?;
    check.matrix()?;
    let cells = experiment.cells();
    check.links(&cells, networks)?;
    check.files(&cells)?;
    check.roles(&cells)?;
    check.marks()?;
    for (_, measure) in &experiment.measures.0 {
        check.measure(measure)?;
    }
    for figure in &experiment.figures {
        check.figure(figure)?;
    }
    for compare in &experiment.compare {
        check.compare(compare, folder)?;
    }
    for goal in &experiment.goals {
        check.goal(goal)?;
    }
    Ok(())
}

struct Check<'a> {
    source: Source<'a>,
    experiment: &'a Experiment,
}

impl Check<'_> {
    fn fail<T>(&self, span: Range<usize>, message: impl Into<String>) -> Result<T, Mistake> {
        Err(self.source.mistake(span, message))
    }

    fn numbers(&self) -> Checked {
        let e = self.experiment;
        timeout(self.source, &e.timeout_s)?;
        range(self.source, "cores", &e.cores, 0.01, 64.0)?;
        range(self.source, "alone", &e.alone, 0.0, 1.0)?;
        repetitions(self.source, &e.repetitions)
    }

    fn names(&self) -> Checked {
        let e = self.experiment;
        let keys = |names: Vec<&Spanned<String>>| -> Checked {
            let mut seen: Vec<&str> = Vec::new();
            for name in names {
                let text = name.get_ref().as_str();
                let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                if text.is_empty() || text.len() > 32 || !text.chars().all(allowed) {
                    let message = format!(
                        "`{text}` is not a valid name; use 1 to 32 letters, digits, `_` and `-`"
                    );
                    return self.fail(name.span(), message);
                }
                if seen.contains(&text) {
                    return self.fail(name.span(), format!("`{text}` is defined twice"));
                }
                seen.push(text);
            }
            Ok(())
        };
        keys(e.hosts.iter().collect())?;
        keys(e.matrix.0.iter().map(|(name, _)| name).collect())?;
        keys(e.roles.0.iter().map(|(name, _)| name).collect())?;
        keys(e.measures.0.iter().map(|(name, _)| name).collect())?;
        keys(e.marks.0.iter().map(|(name, _)| name).collect())
    }

    fn matrix(&self) -> Checked {
        let e = self.experiment;
        let mut cells = 1_usize;
        for (name, levels) in &e.matrix.0 {
            cells = cells.saturating_mul(levels.len());
            if levels.is_empty() || cells > MAX_CELLS {
                let message = format!("the matrix has {cells} cells; allowed is 1 to {MAX_CELLS}");
                return self.fail(name.span(), message);
            }
            if BUILTIN.contains(&name.get_ref().as_str()) {
                let message = format!(
                    "`{0}` cannot be a condition: {{{0}}} is a built-in placeholder",
                    name.get_ref()
                );
                return self.fail(name.span(), message);
            }
            for (index, level) in levels.iter().enumerate() {
                if levels[..index].iter().any(|other| other.get_ref() == level.get_ref()) {
                    return self
                        .fail(level.span(), format!("`{}` is listed twice", level.get_ref()));
                }
            }
        }
        for (condition, levels) in &e.define.0 {
            self.condition(condition)?;
            for (level, _) in &levels.0 {
                self.level(condition.get_ref(), level.get_ref(), level.span())?;
            }
        }
        for chosen in e.skip.iter().chain(&e.only) {
            self.conditions(chosen)?;
        }
        self.needs()?;
        if let (Some(last), []) = (e.skip.iter().chain(&e.only).last(), &e.cells()[..]) {
            let place = last.0.first().map_or(0..0, |(condition, _)| condition.span());
            return self.fail(place, "every cell is excluded; at least 1 must remain");
        }
        Ok(())
    }

    fn needs(&self) -> Checked {
        for need in &self.experiment.needs {
            self.conditions(&need.only)?;
            if need.run.get_ref().is_empty() {
                return self.fail(need.run.span(), "a program is needed, and its arguments");
            }
            for word in need.run.get_ref() {
                let text = Template::parse(word.get_ref());
                let filled = text.and_then(|text| {
                    let known = |name: &str| (name == "here").then(String::new);
                    let other = |name| format!("`{{{name}}}`; only `{{here}}` has a value here");
                    text.fill(known).map_err(other)
                });
                if let Err(message) = filled {
                    return self.fail(word.span(), message);
                }
            }
        }
        Ok(())
    }

    fn condition(&self, name: &Spanned<String>) -> Checked {
        self.known("condition", name, self.experiment.matrix.keys().collect())
    }

    fn level(&self, condition: &str, level: &str, span: Range<usize>) -> Checked {
        let levels = self.experiment.matrix.get(condition).map_or(&[][..], Vec::as_slice);
        let known: Vec<&str> = levels.iter().map(|level| level.get_ref().as_str()).collect();
        if known.contains(&level) {
            return Ok(());
        }
        self.fail(span, no_such(&format!("value of `{condition}`"), level, &known))
    }

    fn conditions(&self, only: &Where) -> Checked {
        for (condition, levels) in &only.0 {
            self.condition(condition)?;
            for level in &levels.get_ref().0 {
                self.level(condition.get_ref(), level.as_str(), levels.span())?;
            }
        }
        Ok(())
    }

    fn known(&self, kind: &str, name: &Spanned<String>, known: Vec<&str>) -> Checked {
        if known.contains(&name.get_ref().as_str()) {
            return Ok(());
        }
        self.fail(name.span(), no_such(kind, name.get_ref(), &known))
    }

    fn host(&self, host: &Spanned<String>) -> Checked {
        let hosts = self.experiment.hosts.iter().map(|host| host.get_ref().as_str()).collect();
        self.known("host", host, hosts)
    }

    fn role(&self, role: &Spanned<String>) -> Checked {
        self.known("role", role, self.experiment.roles.keys().collect())
    }

    /// Fills in a text for a cell, with stand-ins for values that only a run has.
    fn text(&self, cell: &Cell, text: &str, span: Range<usize>) -> Result<String, Mistake> {
        let hosts = &self.experiment.hosts;
        let builtin = |name: &str| match name.split_once('.') {
            Some(("addr", host)) => {
                let (host, _) = host_and_changes(host);
                hosts.iter().any(|h| h.get_ref() == host).then(|| "10.0.0.1".to_owned())
            }
            Some(("port", _)) => Some("1".to_owned()),
            _ => BUILTIN.contains(&name).then(|| "1".to_owned()),
        };
        let filled = cell.fill(self.experiment, text, &builtin);
        filled.map_err(|mut message| {
            if message.contains("has no value") {
                message.push_str(
                    "; known are the conditions, what `define` says for them, {addr.HOST}, \
                     {addr.HOST.CHANGES}, \
                     {port.NAME}, {dir}, {fulmar}, {seed} and {repetition}",
                );
            }
            self.source.mistake(span, message)
        })
    }

    fn links(&self, cells: &[Cell], networks: Option<&dyn NetworkFactory>) -> Checked {
        for (index, link) in self.experiment.links.iter().enumerate() {
            self.ends(link, &self.experiment.links[..index])?;
            for cell in cells {
                let mut settings = Vec::new();
                for (key, value) in &link.set.0 {
                    let filled = self.text(cell, value.get_ref().as_str(), value.span())?;
                    settings.push((key.get_ref().clone(), filled));
                }
                let Some(Err(wrong)) = networks.map(|networks| networks.check(&settings)) else {
                    continue;
                };
                let named = link.set.0.iter().find(|(key, _)| *key.get_ref() == wrong.key);
                let span = named.map_or(link.between.span(), |(key, _)| key.span());
                let varies = named.is_some_and(|(_, value)| value.get_ref().as_str().contains('{'));
                let place = if varies { format!(", in {}", cell.label()) } else { String::new() };
                return self.fail(span, format!("{}: {}{place}", wrong.key, wrong.reason));
            }
        }
        Ok(())
    }

    fn ends(&self, link: &Link, others: &[Link]) -> Checked {
        let [a, b] = &link.between.get_ref().0;
        self.host(a)?;
        self.host(b)?;
        if a.get_ref() == b.get_ref() {
            let message = format!("a link is between two hosts, and `{}` is one", b.get_ref());
            return self.fail(b.span(), message);
        }
        let mut ends = link.between.get_ref().names();
        ends.sort();
        let is_there = others.iter().any(|other| {
            let mut theirs = other.between.get_ref().names();
            theirs.sort();
            theirs == ends
        });
        if is_there {
            return self.fail(link.between.span(), "there is another link between these two hosts");
        }
        Ok(())
    }

    fn files(&self, cells: &[Cell]) -> Checked {
        for (name, text) in &self.experiment.files.0 {
            self.inside(name, "the working folder")?;
            for cell in cells {
                self.text(cell, text.get_ref(), text.span())?;
            }
        }
        Ok(())
    }

    fn inside(&self, name: &Spanned<String>, folder: &str) -> Checked {
        let mut parts = Path::new(name.get_ref()).components();
        let inside = parts.all(|part| matches!(part, std::path::Component::Normal(_)));
        if inside && !name.get_ref().is_empty() {
            return Ok(());
        }
        self.fail(name.span(), format!("`{}` is not a path inside {folder}", name.get_ref()))
    }

    fn roles(&self, cells: &[Cell]) -> Checked {
        let roles = &self.experiment.roles.0;
        for (index, (name, role)) in roles.iter().enumerate() {
            self.host(&role.host)?;
            self.conditions(&role.only)?;
            if role.run.get_ref().is_empty() {
                return self.fail(role.run.span(), "`run` names no program");
            }
            if !(0.0..=MAX_TIMEOUT_S).contains(&role.delay_s) {
                let message =
                    format!("`delay_s` is {}; allowed is 0 to {MAX_TIMEOUT_S}", role.delay_s);
                return self.fail(name.span(), message);
            }
            if let Some(after) = &role.after {
                let before: Vec<&str> = roles[..index]
                    .iter()
                    .filter(|(_, role)| !role.service)
                    .map(|(name, _)| name.get_ref().as_str())
                    .collect();
                self.known("earlier role that ends by itself", after, before)?;
            }
            for cell in cells.iter().filter(|cell| cell.matches(&role.only)) {
                self.role_texts(role, cell)?;
            }
        }
        if roles.iter().all(|(_, role)| role.service) {
            let span = roles.first().map_or(0..0, |(name, _)| name.span());
            return self.fail(span, "all roles are services: nothing ends a sample");
        }
        Ok(())
    }

    fn role_texts(&self, role: &Role, cell: &Cell) -> Checked {
        let values = role.env.0.iter().map(|(_, value)| value);
        for text in role.run.get_ref().iter().chain(values).chain(&role.ready) {
            self.text(cell, text.get_ref(), text.span())?;
        }
        Ok(())
    }

    fn marks(&self) -> Checked {
        self.experiment.marks.0.iter().try_for_each(|(name, mark)| {
            self.role(&mark.role)?;
            if mark.line.is_empty() {
                let message = format!(
                    "the `line` of `{}` is empty and would match every line",
                    name.get_ref()
                );
                return self.fail(name.span(), message);
            }
            Ok(())
        })
    }

    fn mark(&self, mark: &Spanned<String>) -> Checked {
        self.known("mark", mark, self.experiment.marks.keys().collect())
    }

    fn measure(&self, measure: &Measure) -> Checked {
        self.conditions(&measure.only)?;
        if let Some(role) = &measure.role {
            self.role(role)?;
        }
        if let Some(host) = &measure.host {
            self.host(host)?;
        }
        for mark in measure.since.iter().chain(&measure.until) {
            self.mark(mark)?;
        }
        self.window(measure)?;
        let earlier = self.experiment.measures.0.iter().map_while(|(name, other)| {
            (!std::ptr::eq(other, measure)).then(|| name.get_ref().as_str())
        });
        let earlier: Vec<&str> = earlier.collect();
        for other in &measure.of {
            self.known("earlier measure", other, earlier.clone())?;
        }
        let what = measure.what.as_ref().map(|what| *what.get_ref());
        let of_process = matches!(what, Some(What::RssKib | What::CpuPct | What::CpuS));
        let of_packets = matches!(what, Some(What::Count | What::Bytes | What::Seconds));
        let (complete, needs) = match measure.from {
            From::Lines => {
                (measure.role.is_some() && measure.field.is_some(), "`role` and `field`")
            }
            From::Process => (
                measure.role.is_some() && of_process,
                "`role` and `what`: rss_kib, cpu_pct or cpu_s",
            ),
            From::Packets => {
                (measure.host.is_some() && of_packets, "`host` and `what`: count, bytes or seconds")
            }
            From::Spin => (
                measure.host.is_some() && matches!(what, None | Some(What::Error)),
                "`host`, and no `what` but error",
            ),
            From::Sum | From::Difference => (!measure.of.is_empty(), "`of`, a list of measures"),
            From::Quotient => (measure.of.len() == 2, "`of`, two measures"),
            From::Marks => {
                (measure.since.is_some() && measure.until.is_some(), "`since` and `until`")
            }
        };
        let observed = matches!(measure.from, From::Packets | From::Spin);
        if complete && observed && self.experiment.links.is_empty() {
            let place = measure.host.as_ref().map_or(0..0, Spanned::span);
            return self.fail(place, "packets are seen on links, and the experiment has none");
        }
        if complete {
            return Ok(());
        }
        let place = [&measure.role, &measure.field, &measure.host, &measure.since, &measure.until]
            .into_iter()
            .flatten()
            .map(Spanned::span)
            .next();
        let place = place.or_else(|| Some(self.measure_key(measure)?.span())).unwrap_or(0..0);
        let from = format!("{:?}", measure.from).to_lowercase();
        self.fail(place, format!("a measure from `{from}` needs {needs}"))
    }

    fn window(&self, measure: &Measure) -> Checked {
        let ends = [("from_s", &measure.from_s), ("to_s", &measure.to_s)];
        for (key, at) in ends {
            let Some(at) = at else { continue };
            if !matches!(measure.from, From::Lines | From::Process) {
                let message = format!("`{key}` is for measures from `lines` and `process`");
                return self.fail(at.span(), message);
            }
            range(self.source, key, at, 0.0, MAX_TIMEOUT_S)?;
        }
        if let (Some(from), Some(to)) = (&measure.from_s, &measure.to_s)
            && from.get_ref() >= to.get_ref()
        {
            return self.fail(to.span(), "`to_s` is not after `from_s`");
        }
        Ok(())
    }

    fn measure_key(&self, measure: &Measure) -> Option<&Spanned<String>> {
        let all = &self.experiment.measures.0;
        all.iter().find(|(_, one)| std::ptr::eq(one, measure)).map(|(name, _)| name)
    }

    fn named_measure(&self, measure: &Spanned<String>) -> Checked {
        self.known("measure", measure, self.experiment.measures.keys().collect())
    }

    fn figure(&self, figure: &Figure) -> Checked {
        self.named_measure(&figure.measure)?;
        self.conditions(&figure.only)?;
        for condition in figure.x.iter().chain(&figure.series).chain(&figure.each) {
            self.condition(condition)?;
        }
        let needs_x = matches!(figure.shape, Shape::Bars | Shape::Lines | Shape::Boxes);
        if needs_x && figure.x.is_none() {
            return self.fail(figure.measure.span(), "bars, lines and boxes need `x`, a condition");
        }
        if let (Shape::Lines, Some(x)) = (figure.shape, &figure.x) {
            for level in self.experiment.matrix.get(x.get_ref()).into_iter().flatten() {
                if level.get_ref().as_str().parse::<f64>().is_err() {
                    let message =
                        format!("lines need numbers, and `{}` is not a number", level.get_ref());
                    return self.fail(x.span(), message);
                }
            }
        }
        Ok(())
    }

    fn goal(&self, goal: &Goal) -> Checked {
        self.named_measure(&goal.measure)?;
        self.conditions(&goal.only)?;
        if let Some(against) = &goal.against {
            self.conditions(against)?;
            if goal.every {
                let message = "`every` and `against` exclude each other: samples have no partners";
                return self.fail(goal.measure.span(), message);
            }
        }
        match (goal.at_least, goal.at_most) {
            (None, None) => {
                self.fail(goal.measure.span(), "a goal needs `at_most` or `at_least`, a number")
            }
            (Some(least), Some(most)) if least > most => {
                let message = format!("`at_least` {least} is more than `at_most` {most}");
                self.fail(goal.measure.span(), message)
            }
            _ => Ok(()),
        }
    }

    fn compare(&self, compare: &Compare, folder: &Path) -> Checked {
        self.named_measure(&compare.measure)?;
        self.conditions(&compare.only)?;
        if let Some(against) = &compare.against {
            self.conditions(against)?;
        }
        for (_, condition) in &compare.matching.0 {
            self.condition(condition)?;
        }
        self.inside(&compare.paper, "the folder of the experiment")?;
        let path = folder.join(compare.paper.get_ref());
        let columns = csv::Reader::from_path(&path).and_then(|mut csv| csv.headers().cloned());
        let columns = columns.map_err(|error| {
            self.source.mistake(compare.paper.span(), format!("{}: {error}", path.display()))
        })?;
        let known: Vec<&str> = columns.iter().collect();
        self.known("column", &compare.column, known.clone())?;
        let keys = |table: &Ordered<Spanned<String>>| -> Checked {
            table.0.iter().try_for_each(|(key, _)| self.known("column", key, known.clone()))
        };
        keys(&compare.rows)?;
        keys(&compare.matching)
    }
}
