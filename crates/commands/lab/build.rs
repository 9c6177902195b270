//! Builds this source's experiments into the program, so that they are available wherever it is run.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../../experiments");
    let root = root.canonicalize()?;
    println!("cargo::rerun-if-changed={}", root.display());
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut table = String::from("static FILES: &[(&str, &[u8])] = &[\n");
    for file in &files {
        let name = file.strip_prefix(&root)?.to_str().ok_or("a file name is not UTF-8")?;
        writeln!(table, "    ({name:?}, include_bytes!({file:?})),")?;
    }
    table.push_str("];\n");
    fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("experiments.rs"), table)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "__pycache__" {
                collect(&path, files)?;
            }
        } else if [".toml", ".csv", ".py", ".md"].iter().any(|ending| name.ends_with(ending)) {
            files.push(path);
        }
    }
    Ok(())
}
