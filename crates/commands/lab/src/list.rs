//! `fulmar lab list`.

use fulmar_lab::experiment::Document;

use super::experiment_files::FolderArg;

const EXAMPLES: &str = "\
Examples:
  fulmar lab list                        experiments in the program and under ./experiments
  fulmar lab list --experiments my/own";

/// List experiments
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    folder: FolderArg,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let files = args.folder.open()?;
    let names = files.names()?;
    let width = names.iter().map(String::len).max().unwrap_or(0);
    for name in &names {
        let about = match files.load(name) {
            Ok(document) => format!("{} ({})", document.title(), size(&document)),
            Err(error) => format!("cannot be run: {error:#}"),
        };
        println!("{name:width$}  {about}");
    }
    if names.is_empty() {
        println!("no experiments in this folder");
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
