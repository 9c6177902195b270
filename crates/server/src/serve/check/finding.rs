//! What a check found, and what to type: for people, and as JSON.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Context as _;
use serde::Serialize;

use crate::exit::{self, Status, Usage};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// It works, but not as well as it could, or not for long.
    Warning,
    /// It does not work.
    Problem,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Name of the check.
    pub(crate) check: String,
    pub(crate) level: Level,
    pub(crate) text: String,
    /// Next step for the operator, where the text does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
    /// Whether the configuration is wrong, so that a retry fails too.
    #[serde(skip)]
    usage: bool,
}

impl Finding {
    pub(crate) fn ok(check: impl Into<String>, text: impl Into<String>) -> Finding {
        Finding {
            check: check.into(),
            level: Level::Ok,
            text: text.into(),
            next: None,
            usage: false,
        }
    }

    pub(crate) fn warning(
        check: impl Into<String>,
        text: impl Into<String>,
        next: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Warning, next: Some(next.into()), ..Finding::ok(check, text) }
    }

    pub(crate) fn problem(
        check: impl Into<String>,
        text: impl Into<String>,
        next: impl Into<String>,
    ) -> Finding {
        Finding { level: Level::Problem, ..Finding::warning(check, text, next) }
    }

    /// The error with which a start would fail. Its text says what to do.
    pub(crate) fn error(check: impl Into<String>, error: &anyhow::Error) -> Finding {
        let usage = error.downcast_ref::<Usage>().is_some();
        Finding { level: Level::Problem, usage, ..Finding::ok(check, exit::explain(error)) }
    }
}

/// All findings.
#[derive(Debug, Default)]
pub(crate) struct Report(pub(crate) Vec<Finding>);

#[derive(Serialize)]
struct Json<'a> {
    problems: usize,
    warnings: usize,
    findings: &'a [Finding],
}

impl Report {
    fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    /// For people: a line for each finding, and below it what to do.
    fn text(&self) -> String {
        let mut text = String::new();
        for Finding { check, level, text: what, next, .. } in &self.0 {
            let level = match level {
                Level::Ok => "ok",
                Level::Warning => "warning",
                Level::Problem => "PROBLEM",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{level:<8} {check}: {what}");
            if let Some(next) = next {
                let _ = writeln!(text, "         next: {next}");
            }
        }
        let counted = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let [problems, warnings] = [(Level::Problem, "problem"), (Level::Warning, "warning")]
            .map(|(level, what)| counted(self.count(level), what));
        let _ = writeln!(text, "{problems}, {warnings}");
        text
    }

    fn json(&self) -> anyhow::Result<String> {
        let all = Json {
            problems: self.count(Level::Problem),
            warnings: self.count(Level::Warning),
            findings: &self.0,
        };
        Ok(serde_json::to_string_pretty(&all)? + "\n")
    }

    /// Prints the report on standard output.
    ///
    /// # Errors
    /// [`Status`] if there is a problem: 2 for a wrong configuration, as when the server starts, otherwise 1.
    pub(crate) fn print(&self, json: bool) -> anyhow::Result<()> {
        let text = if json { self.json()? } else { self.text() };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("standard output")?;
        match (self.count(Level::Problem), self.0.iter().any(|finding| finding.usage)) {
            (0, _) => Ok(()),
            (_, true) => Err(Status(2).into()),
            (_, false) => Err(Status(1).into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report(vec![
            Finding::ok("clock", "2026-11-23"),
            Finding::warning("disk", "nearly full", "df -h"),
            Finding::error("configuration", &Usage("no such key".to_owned()).into()),
        ])
    }

    #[test]
    fn each_finding_has_a_line_and_what_to_do_below_it() {
        let expected = "ok       clock: 2026-11-23\n\
                        warning  disk: nearly full\n         next: df -h\n\
                        PROBLEM  configuration: no such key\n\
                        1 problem, 1 warning\n";
        assert_eq!(report().text(), expected);
    }

    #[test]
    fn json_has_the_same() {
        let json: serde_json::Value = serde_json::from_str(&report().json().unwrap()).unwrap();
        assert_eq!((&json["problems"], &json["warnings"]), (&1.into(), &1.into()));
        assert_eq!(json["findings"][1]["next"], "df -h");
        assert_eq!(json["findings"][2]["level"], "problem");
        assert!(json["findings"][2].get("next").is_none());
    }

    #[test]
    fn the_exit_code_tells_a_wrong_configuration_from_other_problems() {
        let code = |findings: &[Finding]| {
            let outcome = Report(findings.to_vec()).print(true);
            outcome.err().map(|error| error.downcast_ref::<Status>().unwrap().0)
        };
        let problem = Finding::problem("port", "taken", "stop it");
        assert_eq!(code(&[Finding::ok("a", ""), Finding::warning("b", "", "")]), None);
        assert_eq!(code(std::slice::from_ref(&problem)), Some(1));
        assert_eq!(code(&[problem, report().0[2].clone()]), Some(2));
    }
}
