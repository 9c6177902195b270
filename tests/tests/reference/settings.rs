//! Settings: `fulmar.example.toml`, whose values a test of the server compares with the defaults.

use crate::{check, source, table};

/// Keys that one comment explains, as `key = value`, and the comment.
type Row = (Vec<String>, String);

#[derive(Default)]
struct Section {
    title: String,
    about: String,
    rows: Vec<Row>,
    /// Settings that are comments, because nothing is their default.
    examples: Vec<String>,
}

fn parse(text: &str) -> Vec<Section> {
    let mut sections = vec![Section::default()];
    let mut comment = String::new();
    for line in text.lines().chain([""]) {
        let here = sections.last_mut().unwrap();
        if let Some(words) = line.strip_prefix('#') {
            comment.push_str(words.trim());
            comment.push('\n');
        } else if line.starts_with('[') {
            let title = line.to_owned();
            sections.push(Section {
                title,
                about: std::mem::take(&mut comment),
                ..Section::default()
            });
        } else if line.is_empty() {
            if comment.contains("\n[") {
                here.examples.push(std::mem::take(&mut comment));
            }
            // A comment that stands alone explains what follows it, unless nothing has come yet.
            if here.title.is_empty() {
                here.about.push_str(&std::mem::take(&mut comment));
            }
        } else if comment.is_empty() && !here.rows.is_empty() {
            here.rows.last_mut().unwrap().0.push(line.to_owned());
        } else {
            here.rows.push((vec![line.to_owned()], std::mem::take(&mut comment)));
        }
    }
    sections
}

/// A comment as prose, and the settings behind it.
fn example(text: &str) -> String {
    let begin = if text.starts_with('[') { 0 } else { text.find("\n[").unwrap() + 1 };
    format!("{}\n\n```toml\n{}\n```\n\n", prose(&text[..begin]), text[begin..].trim_end())
}

/// One line, with links to pages instead of their paths.
fn prose(comment: &str) -> String {
    let mut text = comment.trim().replace('\n', " ");
    while let Some(at) = text.find("docs/") {
        let length = text[at..].find(".md").unwrap() + 3;
        let name = text[at + 5..at + length].to_owned();
        text.replace_range(at..at + length, &format!("[{name}](../{name})"));
    }
    text
}

#[test]
fn the_page_of_settings_is_the_example() {
    let mut text = "In a TOML file, given with `fulmar serve --config FILE`. `FULMAR_SECTION__KEY` in the environment \
                    overrides one key, such as `FULMAR_LIMITS__MAX_PACKET_BYTES=65536`. Values here are the defaults; \
                    [fulmar.example.toml](../../fulmar.example.toml) is the same as a file to copy.\n\n"
        .to_owned();
    let example_file = source("fulmar.example.toml");
    let sections = parse(&example_file);
    let keys: usize =
        sections.iter().flat_map(|section| &section.rows).map(|row| row.0.len()).sum();
    let assigned = |line: &&str| line.contains(" = ") && !line.starts_with('#');
    assert_eq!(keys, example_file.lines().filter(assigned).count());
    for section in &sections[1..] {
        text.push_str(&format!("## {}\n\n", section.title));
        if !section.about.is_empty() {
            text.push_str(&format!("{}\n\n", prose(&section.about)));
        }
        let rows = section.rows.iter().map(|(keys, comment)| {
            // The section's own words are the explanation of a key that is its only one, or its switch.
            let explained = !comment.is_empty() || section.rows.len() == 1;
            assert!(explained || !section.about.is_empty(), "{keys:?} is not explained");
            let keys: Vec<_> = keys.iter().map(|key| format!("`{key}`")).collect();
            [keys.join("<br>"), prose(comment)]
        });
        if !section.rows.is_empty() {
            text.push_str(&table(["setting", "meaning"], rows));
            text.push('\n');
        }
        section.examples.iter().for_each(|shown| text.push_str(&example(shown)));
    }
    check("settings.md", "Settings", &text);
}
