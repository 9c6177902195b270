//! Turns the matrix into cells, and fills in placeholders for a cell.

use super::value::{Levels, Ordered};
use super::{Experiment, Template};
use std::collections::BTreeMap;

use toml::Spanned;

/// One combination of the conditions' values, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell(pub Vec<(String, String)>);

impl Cell {
    /// Value of a condition.
    pub fn get(&self, condition: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name == condition).map(|(_, value)| value.as_str())
    }

    /// By condition, as samples keep it.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.0.iter().cloned().collect()
    }

    /// Whether each named condition has one of its values.
    pub fn matches(&self, only: &Ordered<Spanned<Levels>>) -> bool {
        only.iter().all(|(condition, levels)| {
            let allowed = &levels.get_ref().0;
            self.get(condition).is_some_and(|value| allowed.iter().any(|l| l.as_str() == value))
        })
    }

    /// For people and as a key: `transport=quic loss=5`.
    pub fn label(&self) -> String {
        let parts: Vec<String> =
            self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        if parts.is_empty() { "the only cell".to_owned() } else { parts.join(" ") }
    }

    /// Fills in a text's placeholders: conditions, definitions that depend on them, and `builtin` values. A
    /// definition's own placeholders are filled in too. Fails with a mistake in the text, or with the name of a
    /// placeholder that has no value here.
    pub(crate) fn fill(
        &self,
        experiment: &Experiment,
        text: &str,
        builtin: &dyn Fn(&str) -> Option<String>,
    ) -> Result<String, String> {
        let plain = |name: &str| self.get(name).map(str::to_owned).or_else(|| builtin(name));
        let no_value = |name: String| {
            let inner = || {
                let text = self.definition(experiment, &name)?;
                Some(match Template::parse(text) {
                    Ok(text) => text
                        .fill(plain)
                        .err()
                        .map(|inner| format!("`{{{inner}}}`, which `{{{name}}}` needs,"))?,
                    Err(mistake) => return Some(format!("`{{{name}}}`: {mistake}; it")),
                })
            };
            let what = inner().unwrap_or_else(|| format!("`{{{name}}}`"));
            format!("{what} has no value in {}", self.label())
        };
        Template::parse(text)?
            .fill(|name| {
                let defined = || {
                    let text = self.definition(experiment, name)?;
                    Template::parse(text).ok()?.fill(plain).ok()
                };
                plain(name).or_else(defined)
            })
            .map_err(no_value)
    }

    fn definition<'a>(&self, experiment: &'a Experiment, name: &str) -> Option<&'a str> {
        experiment.define.iter().find_map(|(condition, levels)| {
            Some(levels.get(self.get(condition)?)?.get(name)?.get_ref().as_str())
        })
    }
}

impl Experiment {
    /// All cells, the first condition changing slowest.
    pub fn cells(&self) -> Vec<Cell> {
        let mut cells = vec![Cell(Vec::new())];
        for (condition, levels) in self.matrix.iter() {
            cells = cells
                .iter()
                .flat_map(|cell| {
                    levels.iter().map(move |level| {
                        let mut longer = cell.clone();
                        longer.0.push((condition.to_owned(), level.get_ref().to_string()));
                        longer
                    })
                })
                .collect();
        }
        cells.retain(|cell| !self.skip.iter().any(|skip| cell.matches(skip)));
        for only in [&self.only, &self.within].into_iter().filter(|only| !only.is_empty()) {
            cells.retain(|cell| only.iter().any(|only| cell.matches(only)));
        }
        cells
    }
}
