//! Commands: what `--help` prints, for each of them.

use std::process::Stdio;

use fulmar_tests::{fulmar, run};

use crate::check;

pub(crate) fn help(words: &[String]) -> String {
    // As on a terminal of 100 columns.
    let mut command = fulmar();
    command.args(words).arg("--help").env("COLUMNS", "100").stdin(Stdio::null());
    let output = run(&mut command);
    assert!(output.status.success(), "{words:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Names of the commands below one, from its help.
pub(crate) fn below(help: &str) -> impl Iterator<Item = &str> {
    let lines = help.lines().skip_while(|line| !line.starts_with("Usage:"));
    lines
        .take_while(|line| *line != "Options:")
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' ')))
        .map(|line| line.split(' ').next().unwrap())
        .filter(|name| {
            *name != "help" && name.starts_with(|first: char| first.is_ascii_lowercase())
        })
}

/// Help without a section of options, such as those that every command has.
fn without(section: &str, help: &str) -> String {
    let mut kept = String::new();
    let mut dropped = false;
    for line in help.lines() {
        dropped = match line {
            _ if !line.is_empty() && line == section => true,
            _ if dropped => line.is_empty() || line.starts_with(' '),
            _ => false,
        };
        if !dropped {
            kept.push_str(line.trim_end());
            kept.push('\n');
        }
    }
    kept
}

fn walk(words: &[String], text: &mut String) {
    let help = help(words);
    let name = [&["fulmar".to_owned()], words].concat().join(" ");
    let log = if words.is_empty() { "" } else { "Log:" };
    let shown = without(log, &help);
    text.push_str(&format!("## {name}\n\n```text\n{}\n```\n\n", shown.trim_end()));
    for name in below(&help) {
        walk(&[words, &[name.to_owned()]].concat(), text);
    }
}

#[test]
fn the_page_of_commands_is_their_help() {
    let mut text = "What `--help` prints. Every command also has the log options of the first section; exit codes are \
                    listed in [Codes](codes.md#exit-codes).\n\n"
        .to_owned();
    walk(&[], &mut text);
    assert!(text.matches("\n## fulmar ").count() > 25, "{text}");
    check("commands.md", "Commands", &text);
}
