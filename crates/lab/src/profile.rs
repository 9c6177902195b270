//! Named links, each with the sources of its values. The data is in `profiles.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::link::{ConfigError, LinkConfig};

const DATA: &str = include_str!("profiles.toml");

/// A named link.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Name by which it is requested.
    pub name: String,
    /// Description in a line.
    pub summary: String,
    /// Where each figure comes from.
    pub source: String,
    /// The settings, as in [`SETTINGS`](crate::link::SETTINGS).
    pub settings: BTreeMap<String, String>,
    /// The link.
    pub link: LinkConfig,
}

/// No such profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The name is unknown.
    #[error("unknown profile {name:?}; use one of: {known}")]
    Unknown {
        /// The name as given.
        name: String,
        /// Those there are.
        known: String,
    },
    /// The data is broken; a test makes sure that it is not.
    #[error("profile {0:?}: {1}")]
    Broken(String, String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    summary: String,
    source: String,
    #[serde(default)]
    link: BTreeMap<String, String>,
}

fn entries() -> Result<BTreeMap<String, Entry>, ProfileError> {
    toml::from_str(DATA).map_err(|error| ProfileError::Broken("all".into(), error.to_string()))
}

fn build(name: String, entry: Entry) -> Result<Profile, ProfileError> {
    let mut link = LinkConfig::default();
    // What both directions share comes first, so that `up.` and `down.` refine it.
    let (one, both): (Vec<_>, Vec<_>) = entry.link.iter().partition(|(key, _)| key.contains('.'));
    let broken = |error: ConfigError| ProfileError::Broken(name.clone(), error.to_string());
    for (key, value) in both.into_iter().chain(one) {
        link.set(key, value).map_err(broken)?;
    }
    link.check().map_err(broken)?;
    let Entry { summary, source, link: settings } = entry;
    Ok(Profile { name, summary, source, settings, link })
}

/// All profiles, by name.
///
/// # Errors
/// The data is broken.
pub fn load_all() -> Result<Vec<Profile>, ProfileError> {
    entries()?.into_iter().map(|(name, entry)| build(name, entry)).collect()
}

/// A profile by its name.
///
/// # Errors
/// There is none of that name; the error lists those there are.
pub fn find(name: &str) -> Result<Profile, ProfileError> {
    let mut entries = entries()?;
    match entries.remove(name) {
        Some(entry) if !entry.link.contains_key("profile") => build(name.to_owned(), entry),
        _ => {
            let known: Vec<_> = entries.into_keys().collect();
            Err(ProfileError::Unknown { name: name.to_owned(), known: known.join(", ") })
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_can_be_and_says_where_it_comes_from() {
        let profiles = load_all().unwrap();
        let common = ["wifi", "lte", "3g", "2g-64k", "nb-iot", "satellite-geo"];
        let testbeds = [
            "mqtt-quic-wired",
            "mqtt-quic-wireless",
            "mqtt-quic-long-distance",
            "meter-reading-wifi-json",
            "meter-reading-2g-64kbps",
            "monitoring",
        ];
        for name in common.iter().chain(&testbeds) {
            assert!(profiles.iter().any(|profile| profile.name == *name), "{name} is missing");
        }
        for profile in profiles {
            assert!(profile.summary.len() > 10, "{}", profile.name);
            assert!(profile.source.len() > 30, "{} needs its source", profile.name);
            assert_eq!(find(&profile.name).unwrap(), profile);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert!(find("5g").unwrap_err().to_string().contains("2g-64k"));
    }
}
