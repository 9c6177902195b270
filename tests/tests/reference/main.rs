//! The pages of `docs/reference`, made from the program and its sources: each test makes one and compares it with the
//! file. `make reference` writes the files instead.
#![allow(clippy::unwrap_used)]

mod codes;
mod commands;
mod http;
mod limits;
mod metrics;
mod readme;
mod settings;
mod topics;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A file of the repository.
fn source(path: &str) -> String {
    let text = std::fs::read_to_string(root().join(path));
    text.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The Rust sources of a folder without their tests.
fn sources(folder: &str) -> Vec<String> {
    let (mut folders, mut found) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.file_stem().unwrap() == "tests" {
                continue;
            } else if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(path).unwrap();
                found.push(text.split("\nmod tests {").next().unwrap().to_owned());
            }
        }
    }
    found
}

/// Compares a page with its file, or writes it where `FULMAR_WRITE_REFERENCE` says so.
fn check(name: &str, title: &str, text: &str) {
    let notice =
        "<!-- Made by `make reference` from the program; a test compares. Do not edit. -->";
    let page = format!("# {title}\n\n{notice}\n\n{}\n", text.trim());
    let path = root().join("docs/reference").join(name);
    if std::env::var_os("FULMAR_WRITE_REFERENCE").is_some() {
        std::fs::write(path, page).unwrap();
        return;
    }
    let file = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = file.lines().zip(page.lines()).find(|(file, page)| file != page);
    assert!(
        file == page,
        "docs/reference/{name} is not what the program is; `make reference` writes it. {differs:#?}"
    );
}

/// A table: what its columns are, and the rows.
fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut text = line(&head.map(str::to_owned));
    text.push_str(&format!("|{}\n", "---|".repeat(N)));
    rows.into_iter().for_each(|row| text.push_str(&line(&row)));
    text
}
