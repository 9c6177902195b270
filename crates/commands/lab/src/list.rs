//! `fulmar lab list` and `fulmar lab show`.

use fulmar_lab::experiment::{Document, Experiment};

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

const SHOW_EXAMPLES: &str = "\
Examples:
  fulmar lab show monitoring             what `fulmar lab run monitoring` would run
  fulmar lab show my/own.toml";

/// Show an experiment's conditions, measures, and the number of its samples
#[derive(clap::Args, Debug)]
#[command(after_help = SHOW_EXAMPLES)]
pub(super) struct Show {
    /// Experiment, by name or path
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    folder: FolderArg,
}

pub(super) fn print_experiment(args: &Show) -> anyhow::Result<()> {
    let files = args.folder.open()?;
    let document = files.load(&args.name)?;
    println!("{}: {}", args.name, document.title());
    match &document {
        Document::Experiment(experiment, _) => describe(experiment),
        Document::Suite(suite, _) => {
            println!("\n{}", suite.about);
            println!("Parts, see `fulmar lab show PART`: {}", size(&document));
        }
    }
    println!("Run it: fulmar lab run {}", args.name);
    Ok(())
}

fn describe(experiment: &Experiment) {
    println!("\n{}\n\nConditions:", experiment.about);
    for (condition, levels) in experiment.matrix.iter() {
        let levels: Vec<&str> = levels.iter().map(|level| level.get_ref().as_str()).collect();
        println!("  {condition} = {}", levels.join(", "));
    }
    println!("Measures:");
    for (name, measure) in experiment.measures.iter() {
        println!("  {name}: {} ({})", measure.title, measure.unit);
    }
    let (cells, times) = (experiment.cells().len(), *experiment.repetitions.get_ref());
    let (cores, timeout_s) = (experiment.cores.get_ref(), experiment.timeout_s.get_ref());
    println!(
        "{cells} cells × {times}: {} samples of at most {timeout_s} s",
        cells * times as usize
    );
    println!("A sample counts as {cores} cores: with more cores than that, several run at a time.");
}
