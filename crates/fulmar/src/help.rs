//! Lays out what stands below the options in `--help`, so that no line of it is broken twice.
//!
//! Commands write examples in two columns and text in lines as the source has them. Terminals differ: clap breaks what
//! is too wide, in the middle of a column. So examples that do not all fit into [`WIDTH`] have what they do
//! below them, and a paragraph becomes one line, which clap breaks where the terminal ends.

use std::fmt::Write as _;

use clap::Command;

/// Smallest width of a terminal, in columns.
const WIDTH: usize = 80;
/// The indentation of what an example does, where it has a line of its own.
const BELOW: &str = "      ";

/// The program's commands by purpose: clap has headings for options only.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Run a broker", &["serve", "doctor", "health", "cluster", "cert", "import", "demo"]),
    ("Operate it", &["ctl", "sink", "audit", "user", "passwd", "twin"]),
    ("Publish and subscribe", &["pub", "sub", "sensor", "meter"]),
    ("Distribute files over bad links", &["send", "receive", "rollout"]),
    ("Measure", &["bench", "lab"]),
    ("Set up this program", &["completions", "man", "help"]),
];

/// The program with its commands in groups.
pub(crate) fn grouped(mut program: Command) -> Command {
    program.build();
    let mut groups = String::new();
    for (heading, names) in GROUPS {
        let commands = names.iter().filter_map(|name| program.find_subcommand(name));
        let mut commands = commands.filter(|command| !command.is_hide_set()).peekable();
        if commands.peek().is_none() {
            continue;
        }
        end_line(&mut groups, &format!("{heading}:"));
        for command in commands {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            end_line(&mut groups, &format!("  {:<11}  {about}", command.get_name()));
        }
        groups.push('\n');
    }
    program.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}{{after-help}}"
    ))
}

/// The command and those below it with their texts laid out.
pub(crate) fn laid_out(command: Command) -> Command {
    let text = command.get_after_help().map(|text| lay_out(&text.to_string()));
    let command = command.mut_subcommands(laid_out);
    match text {
        Some(text) => command.after_help(text),
        None => command,
    }
}

/// A line of a block of examples.
enum Line<'a> {
    /// Command, and its explanation if that stands beside it.
    Typed(&'a str, Option<&'a str>),
    /// Explanation of the command before, or its continuation.
    Below(&'a str),
}

fn lay_out(text: &str) -> String {
    let mut out = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let indented = |line: &str| line.starts_with("  ");
        if indented(line) {
            let mut block = vec![line];
            while let Some(next) = lines.next_if(|line| indented(line)) {
                block.push(next);
            }
            examples(&block, &mut out);
            continue;
        }
        out.push_str(line);
        let is_heading = line.ends_with(':') && lines.peek().is_some_and(|next| indented(next));
        while !line.is_empty() && !is_heading {
            let Some(next) = lines.next_if(|next| !next.is_empty() && !indented(next)) else {
                break;
            };
            out.push(' ');
            out.push_str(next);
        }
        out.push('\n');
    }
    out.truncate(out.trim_end().len());
    out
}

fn examples(block: &[&str], out: &mut String) {
    if block.iter().all(|line| line.chars().count() <= WIDTH) {
        block.iter().for_each(|line| end_line(out, line));
        return;
    }
    let mut goes_on = false;
    for line in block {
        match parse(line, goes_on) {
            Line::Typed(typed, does) => {
                wrap(out, "  ", typed, " \\");
                does.iter().for_each(|does| wrap(out, BELOW, does, ""));
            }
            Line::Below(text) => wrap(out, BELOW, text, if goes_on { " \\" } else { "" }),
        }
        goes_on = line.ends_with('\\');
    }
}

fn parse(line: &str, goes_on: bool) -> Line<'_> {
    let text = line.trim_start();
    if goes_on || line.len() - text.len() >= BELOW.len() {
        return Line::Below(text);
    }
    match text.find("   ") {
        Some(at) => Line::Typed(&text[..at], Some(text[at..].trim_start())),
        None => Line::Typed(text, None),
    }
}

/// Words in as many lines as they take; `more` is behind each but the last, and those that follow are indented further.
fn wrap(out: &mut String, indent: &str, text: &str, more: &str) {
    let mut line = indent.to_owned();
    let mut empty = true;
    let mut quoted = false;
    // What is typed is to be copied: nothing in quotation marks goes to another line.
    let words = text.split(|letter: char| {
        quoted ^= letter == '\'' && !more.is_empty();
        letter == ' ' && !quoted
    });
    for word in words {
        let room = WIDTH - more.len();
        // What says that a line goes on stays in it.
        let fits = word == "\\" || line.chars().count() + 1 + word.chars().count() <= room;
        if !empty && !fits {
            line.push_str(more);
            end_line(out, &line);
            BELOW.clone_into(&mut line);
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    end_line(out, &line);
}

fn end_line(out: &mut String, line: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{line}");
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory as _;

    /// Every command, with its name.
    fn walk(command: Command, name: &str, found: &mut Vec<(String, Command)>) {
        let name = format!("{name} {}", command.get_name());
        for below in command.get_subcommands() {
            walk(below.clone(), &name, found);
        }
        found.push((name, command));
    }

    #[test]
    fn each_command_is_in_one_group_of_the_programs_help() {
        let mut program = grouped(Cli::command());
        let help = program.render_help().to_string();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            let begin = format!("\n  {} ", command.get_name());
            assert_eq!(help.matches(&begin).count(), 1, "{begin:?}: {help}");
        }
        assert!(help.contains("\nPublish and subscribe:\n  pub "), "{help}");
    }

    #[test]
    fn no_line_of_any_help_is_broken_twice_or_too_wide() {
        let mut all = Vec::new();
        walk(grouped(laid_out(Cli::command())), "", &mut all);
        assert!(all.len() > 20, "{} commands", all.len());
        for (name, command) in all.iter().filter(|(_, command)| !command.is_hide_set()) {
            // A wider terminal's help is 100 columns wide, see `Cli`.
            for (terminal, width) in [(80, 80), (120, 100)] {
                let mut command = command.clone().term_width(width);
                let help = command.render_long_help().to_string();
                for line in help.lines().filter(|line| !line.starts_with("Usage:")) {
                    assert!(line.chars().count() <= width, "{name} at {terminal}: {line}");
                    assert_ne!(line.trim(), "\\", "{name} at {terminal}");
                }
                let Some(written) = command.get_after_help().map(ToString::to_string) else {
                    continue;
                };
                for line in written.lines().filter(|line| line.starts_with("  ")) {
                    let whole = help.lines().any(|shown| shown == line.trim_end());
                    assert!(whole, "{name} at {terminal}: broken: {line}");
                }
                let first = written.lines().next().unwrap();
                let below: Vec<&str> = help.lines().skip_while(|line| *line != first).collect();
                for pair in below.windows(2) {
                    let [line, next] = pair else { continue };
                    let text = |line: &str| !line.is_empty() && !line.starts_with(' ');
                    if text(line) && text(next) {
                        let word = next.split(' ').next().unwrap().chars().count();
                        let room = width.saturating_sub(line.chars().count() + 1);
                        assert!(word > room, "{name} at {terminal}: ends too soon: {line}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_an_example_does_moves_below_it_where_it_does_not_fit_beside() {
        let wide = "does something that nobody would have expected of a command that is as short as this one";
        let text =
            format!("Examples:\n  fulmar a   {wide}\n  fulmar b\n      as it says\n\nOne\ntwo.");
        let expected = "Examples:\n  fulmar a\n      does something that nobody would have expected of a command that is as\n      \
                        short as this one\n  fulmar b\n      as it says\n\nOne two.";
        assert_eq!(lay_out(&text), expected);
        assert_eq!(lay_out("Examples:\n  fulmar a   short"), "Examples:\n  fulmar a   short");
    }
}
