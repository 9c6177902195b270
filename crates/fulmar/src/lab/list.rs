//! `fulmar lab list`.

use fulmar_lab::experiment::Document;

use super::Folder;
use crate::exit::Usage;

const EXAMPLES: &str = "\
Examples:
  fulmar lab list                        those under ./experiments
  fulmar lab list --experiments my/own";

/// List experiments
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    folder: Folder,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let folder = &args.folder.experiments;
    let names = args.folder.names().map_err(|error| {
        let folder = folder.display();
        Usage(format!(
            "{folder}: {error}; name a folder with --experiments, or write an experiment with `fulmar lab \
             new FILE.toml`"
        ))
    })?;
    let width = names.iter().map(String::len).max().unwrap_or(0);
    for name in &names {
        let about = match args.folder.load(name) {
            Ok(document) => format!("{} ({})", document.title(), size(&document)),
            Err(error) => format!("cannot be run: {error:#}"),
        };
        println!("{name:width$}  {about}");
    }
    if names.is_empty() {
        println!("no experiments in {}", folder.display());
    }
    Ok(())
}

fn size(document: &Document) -> String {
    match document {
        Document::Experiment(experiment, _) => {
            let (cells, times) = (experiment.cells().len(), experiment.repetitions.get_ref());
            format!("{cells} cells × {times}")
        }
        Document::Suite(suite, _) => {
            let parts: Vec<&str> = suite.parts.iter().map(|part| part.get_ref().as_str()).collect();
            parts.join(" + ")
        }
    }
}
