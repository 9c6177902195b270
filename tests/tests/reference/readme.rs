//! What README.md says that there is: commands, targets, settings, files. What it says is missing, it checks where the
//! program can tell.

use std::collections::BTreeSet;

use crate::commands::{below, help};
use crate::{root, source};

/// The README's text in backquotes, without blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(|part| part.split('`').skip(1).step_by(2)).collect()
}

/// The commands that the program lists.
fn commands() -> BTreeSet<String> {
    below(&help(&[])).map(str::to_owned).collect()
}

#[test]
fn commands_targets_and_settings_in_the_readme_exist() {
    let (readme, makefile) = (source("README.md"), source("Makefile"));
    let (example, known) = (source("fulmar.example.toml"), commands());
    for words in quoted(&readme) {
        let mut parts = words.split_whitespace();
        match (parts.next(), parts.next()) {
            (Some("fulmar"), Some(name)) if name.starts_with(|c: char| c.is_ascii_lowercase()) => {
                assert!(known.contains(name), "README.md: `{words}`: there is no command {name}");
            }
            (Some("make"), Some(target)) => {
                let rule = format!("\n{target}:");
                assert!(makefile.contains(&rule), "README.md: `{words}`: there is no such target");
            }
            (Some(section), Some(key)) if section.starts_with('[') && section.ends_with(']') => {
                let at = example.find(&format!("\n{section}")).unwrap_or_else(|| {
                    panic!("README.md: `{words}`: fulmar.example.toml has no such section")
                });
                let rest = &example[at + 2..];
                let rest = &rest[..rest.find("\n[").unwrap_or(rest.len())];
                let set = [format!("\n{key} ="), format!("\n# {key} ="), format!("\n#{key} =")];
                let there = set.iter().any(|set| rest.contains(set.as_str()));
                assert!(there, "README.md: `{words}`: fulmar.example.toml has no such key");
            }
            _ => {}
        }
    }
}

#[test]
fn each_command_is_in_the_readme() {
    let readme = source("README.md");
    let inside = readme.split("## What is inside").nth(1).unwrap().split("\n## ").next().unwrap();
    // What installs and looks after the program itself.
    let helpers = ["completions", "man", "health"];
    let unnamed: Vec<_> = commands()
        .into_iter()
        .filter(|name| !helpers.contains(&name.as_str()))
        .filter(|name| !inside.contains(&format!("`fulmar {name}")))
        .collect();
    assert!(unnamed.is_empty(), "\"What is inside\" of README.md lacks {unnamed:?}");
}

#[test]
fn files_and_headings_that_the_readme_links_to_exist() {
    for link in source("README.md").split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let (file, heading) = link.split_once('#').unwrap_or((link, ""));
        if link.contains("://") {
            continue;
        }
        assert!(root().join(file).exists(), "README.md links to {file}, which is not there");
        let anchor = |line: &str| {
            let text = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            text.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect::<String>()
        };
        let page = if heading.is_empty() { String::new() } else { source(file) };
        let has = page.lines().any(|line| line.starts_with('#') && anchor(line) == heading);
        assert!(heading.is_empty() || has, "README.md: {file} has no heading #{heading}");
    }
}

/// A sentence about what is missing must go when that is built.
#[test]
fn what_the_readme_says_is_missing_is_missing() {
    let readme = source("README.md");
    let missing = readme.split("Not there yet:").nth(1).unwrap().split("\n## ").next().unwrap();
    for (sentence, file, built) in [
        ("Connectors to databases", "fulmar.example.toml", "\n[sink"),
        ("MQTT-SN over DTLS", "fulmar.example.toml", "mqtt_sns"),
        ("Flows opened by the server", "docs/mqtt.md", "server-opened flows"),
    ] {
        assert!(
            !missing.contains(sentence) || !source(file).contains(built),
            "README.md says that it lacks \"{sentence}\", and {file} has {built:?}"
        );
    }
    assert!(!missing.contains("Enhanced authentication"), "there is SCRAM");
}
