//! `fulmar completions` and `fulmar man`: files for shells and for man(1), from the command line's definition.
//!
//! Packages contain them (scripts/dist); these commands are for programs installed in another way.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

const COMPLETION_EXAMPLES: &str = "\
Examples:
  fulmar completions bash > ~/.local/share/bash-completion/completions/fulmar
  fulmar completions zsh > ~/.zfunc/_fulmar
      with ~/.zfunc in fpath
  fulmar completions fish > ~/.config/fish/completions/fulmar.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  fulmar man ~/.local/share/man/man1                     then: man fulmar-serve";

/// Print completions for a shell
#[derive(clap::Args, Debug)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(crate) struct CompletionArgs {
    shell: Shell,
}

/// Write manual pages
#[derive(clap::Args, Debug)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Folder for a page per command, created if missing
    folder: PathBuf,
}

pub(crate) fn completions(args: &CompletionArgs, mut line: Command) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut line, "fulmar", &mut text);
    std::io::stdout().write_all(&text).context("cannot print")
}

pub(crate) fn man(args: &ManArgs, mut line: Command) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("cannot create {}", args.folder.display()))?;
    line.build();
    page(&line, &args.folder)
}

fn page(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut text = Vec::new();
    // No date: the same program writes the same pages.
    Man::new(command.clone().name(name.clone())).title(&name).date("").render(&mut text)?;
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    // Hidden are those that this program was built without; `help` would repeat all others.
    let mut below = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && command.get_name() != "help");
    below.try_for_each(|command| page(command, folder))
}
