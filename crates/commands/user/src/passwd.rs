//! `fulmar passwd`: lines for the broker's password file.

use std::path::PathBuf;

use anyhow::Context;
use fulmar_broker::User;
use fulmar_broker::auth::hash_password;
use fulmar_certs::files;
use fulmar_command::password::ask_new;

use fulmar_command::exit::Usage;

const EXAMPLES: &str = "\
Examples:
  fulmar passwd ann                        ask for ann's password, print the line for the file
  fulmar passwd ann --file passwords       add ann to the file, or change ann's password
  fulmar passwd ann --file passwords < secret
                                           the password is the first line of a file
  fulmar passwd ann --file passwords -D    remove ann from the file

The broker reads the file named by [auth] password_file at start and on SIGHUP.";

/// Add or remove a user of the password file, or change a password
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// User name
    user: String,
    /// Password file to change, created if missing [default: print the line for the file]
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Remove the user from the file
    #[arg(short = 'D', long, requires = "file")]
    delete: bool,
}

/// Asks, hashes, and prints or writes the line.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let user = args.user.as_str();
    User::check_name(user).map_err(|error| Usage(format!("user name {user:?}: {error}")))?;
    if user.starts_with('#') || user.contains(':') {
        let text = format!("user name {user:?}: must not begin with # or contain a colon");
        return Err(Usage(text).into());
    }
    if let (Some(path), true) = (&args.file, args.delete) {
        let before = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let after = removed(&before, user);
        let after = after.with_context(|| format!("{} has no user {user:?}", path.display()))?;
        return Ok(files::write(path, after.as_bytes(), true)?);
    }
    let line = format!("{user}:{}", hash_password(ask_new()?.as_bytes())?);
    let Some(path) = &args.file else {
        println!("{line}");
        return Ok(());
    };
    let before = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    Ok(files::write(path, replaced(&before, user, &line).as_bytes(), true)?)
}

fn is_of(line: &str, user: &str) -> bool {
    line.trim().split_once(':').is_some_and(|(name, _)| name == user)
}

/// The file without the user's line; `None` if there is none.
fn removed(before: &str, user: &str) -> Option<String> {
    let rest: Vec<&str> = before.lines().filter(|line| !is_of(line, user)).collect();
    (rest.len() < before.lines().count())
        .then(|| rest.iter().map(|line| format!("{line}\n")).collect())
}

/// The file with the user's line exchanged, or with a new one at its end.
fn replaced(before: &str, user: &str, line: &str) -> String {
    let mut lines: Vec<&str> = before.lines().collect();
    match lines.iter().position(|old| is_of(old, user)) {
        Some(at) => lines[at] = line,
        None => lines.push(line),
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_line_is_exchanged_and_the_rest_kept() {
        let before = "# who may come in\nann:old\nbob:b\n";
        assert_eq!(replaced(before, "ann", "ann:new"), "# who may come in\nann:new\nbob:b\n");
        assert_eq!(replaced("ann:a", "an", "an:x"), "ann:a\nan:x\n");
        assert_eq!(replaced("", "ann", "ann:a"), "ann:a\n");
    }

    #[test]
    fn a_users_line_is_removed_and_the_rest_kept() {
        let before = "# who may come in\nann:a\nanna:b\n";
        assert_eq!(removed(before, "ann").as_deref(), Some("# who may come in\nanna:b\n"));
        assert_eq!(removed("ann:a", "ann").as_deref(), Some(""));
        assert_eq!(removed(before, "bob"), None);
    }
}
