//! What pages say can be typed is parsed by the program: each `fulmar …` line and span of README.md, CONTRIBUTING.md, TESTING.md,
//! docs/ and the crates' READMEs by this command line, each `make …` by the Makefile.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clap::error::ErrorKind;

use crate::cli::Cli;

/// A command in a page.
struct Typed {
    /// File and line.
    at: String,
    text: String,
    /// Whether it stands in a line of its own, to be copied, and not within a sentence.
    whole: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn pages() -> Vec<PathBuf> {
    let root = root();
    let mut found =
        ["README.md", "CONTRIBUTING.md", "TESTING.md"].map(|page| root.join(page)).to_vec();
    for entry in std::fs::read_dir(root.join("docs")).unwrap() {
        found.push(entry.unwrap().path());
    }
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        found.push(entry.unwrap().path().join("README.md"));
    }
    found.retain(|path| {
        path.extension().is_some_and(|extension| extension == "md") && path.exists()
    });
    found
}

/// Lines of blocks, and spans between backticks in prose.
fn typed(path: &Path) -> Vec<Typed> {
    let text = std::fs::read_to_string(path).unwrap();
    let name = path.strip_prefix(root()).unwrap().display().to_string();
    let (mut found, mut prose) = (Vec::new(), String::new());
    let (mut fenced, mut goes_on) = (None::<String>, false);
    for (number, line) in (1..).zip(text.lines()) {
        let at = format!("{name}:{number}");
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fenced = fenced.is_none().then(|| language.to_owned());
        } else if fenced.as_ref().is_some_and(|language| language != "sh") {
            continue;
        } else if fenced.is_some() || line.starts_with("    ") {
            let line = line.trim().trim_start_matches("$ ");
            if std::mem::take(&mut goes_on) {
                let before: &mut Typed = found.last_mut().unwrap();
                before.text = format!("{} {line}", before.text.trim_end_matches('\\'));
            } else {
                found.push(Typed { at, text: line.to_owned(), whole: true });
            }
            goes_on = line.ends_with('\\');
        } else {
            // A span may begin in one line and end in the next.
            prose.push_str(&line.replace("``", ""));
            prose.push(if line.is_empty() { '\0' } else { ' ' });
        }
    }
    for paragraph in prose.split('\0') {
        let spans = paragraph.split('`').skip(1).step_by(2);
        found.extend(spans.map(|span| Typed {
            at: name.clone(),
            text: span.to_owned(),
            whole: false,
        }));
    }
    found
}

/// The commands of a line as a shell would see them, without comments, redirections and what stands beside.
fn commands(line: &str) -> Vec<Vec<String>> {
    // What a command does stands to its right, in a column of its own.
    let line = line.split("    ").next().unwrap();
    let (mut all, mut words) = (Vec::new(), Vec::new());
    let (mut word, mut quote) = (None::<String>, None::<char>);
    for letter in line.chars().chain([' ']) {
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (' ', None) => words.extend(word.take()),
            ('|' | ';' | '&', None) => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            ('#', None) if word.is_none() => break,
            _ => word.get_or_insert_default().push(letter),
        }
    }
    all.push(words);
    for words in &mut all {
        if let Some(end) = words.iter().position(|word| word.starts_with(['<', '>'])) {
            words.truncate(end);
        }
    }
    all.retain(|words| !words.is_empty());
    all
}

/// Whether the program understands a command; a span within a sentence may leave out what a command needs.
fn refused(words: &[String], whole: bool) -> Option<String> {
    let error = Cli::command().try_get_matches_from(words).err()?;
    let unfinished = [
        ErrorKind::MissingRequiredArgument,
        ErrorKind::MissingSubcommand,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
        ErrorKind::InvalidValue,
        ErrorKind::ValueValidation,
    ];
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => None,
        kind if !whole && unfinished.contains(&kind) => None,
        _ => Some(error.to_string()),
    }
}

/// What follows the program's name, wherever it is said to be.
fn fulmar(words: &[String]) -> Option<&[String]> {
    // `fulmar lab link … -- fulmar sub …` is two commands.
    let first = Path::new(words.first()?).file_name()?;
    (first == "fulmar").then_some(words)
}

/// Placeholders that stand for what a sentence leaves open.
fn is_open(word: &str) -> bool {
    word == "COMMAND" || word.contains('…')
}

#[test]
fn every_command_in_the_pages_is_one_of_the_program() {
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for typed in pages().iter().flat_map(|page| typed(page)) {
        for words in commands(&typed.text) {
            let behind = words.iter().position(|word| word == "--");
            let (own, link) = words.split_at(behind.unwrap_or(words.len()));
            for words in [own, link.get(1..).unwrap_or_default()] {
                let Some(words) = fulmar(words).filter(|words| words.len() > 1) else { continue };
                let mut words = words.to_vec();
                let open = words.iter().any(|word| is_open(word));
                words.retain(|word| !is_open(word));
                // What is run behind a link is required, and stands in another part.
                words.extend(link.first().filter(|_| words.contains(&"link".to_owned())).cloned());
                words.extend(
                    link.first()
                        .filter(|_| words.contains(&"link".to_owned()))
                        .map(|_| "x".to_owned()),
                );
                checked += 1;
                if let Some(error) = refused(&words, typed.whole && !open) {
                    wrong.push(format!("{}: {}: {error}", typed.at, typed.text));
                }
            }
        }
    }
    assert!(checked > 150, "{checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_target_and_script_in_the_pages_exists() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: Vec<&str> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(target, _)| target)
        .filter(|target| !target.is_empty() && !target.contains(['\t', ' ', '$', '=']))
        .collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for typed in pages().iter().flat_map(|page| typed(page)) {
        for words in commands(&typed.text) {
            let exists = match (words[0].as_str(), words.get(1)) {
                ("make", Some(target)) => targets.contains(&target.as_str()),
                (script, _) if script.starts_with("scripts/") => root().join(script).is_file(),
                _ => continue,
            };
            checked += 1;
            if !exists {
                wrong.push(format!("{}: {}", typed.at, typed.text));
            }
        }
    }
    assert!(checked > 30, "{checked}");
    assert!(wrong.is_empty(), "there is no such target or script:\n{}", wrong.join("\n"));
}

#[test]
fn faults_in_pages_are_found() {
    for line in [
        "fulmar consume quic://localhost -t a",
        "fulmar sub quic://localhost -t a --verbos",
        "fulmar lab run x --seeed 3",
        "fulmar user token gw-1 --twin rural --role nobody",
    ] {
        assert!(refused(&commands(line)[0], true).is_some(), "{line}");
    }
    for (line, expected) in [
        ("a 'b c' | fulmar sub -t '#' > out   # why", "a+b c/fulmar+sub+-t+#"),
        ("fulmar pub x -m y     what it does", "fulmar+pub+x+-m+y"),
    ] {
        let parsed = commands(line).iter().map(|words| words.join("+")).collect::<Vec<_>>();
        assert_eq!(parsed.join("/"), expected);
    }
}
