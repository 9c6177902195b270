//! Puts the web app into the program: a table of the files that `make web` left in `web/dist`, those that
//! it compressed in these forms alone. Without them, as in the crate's package, the table is empty, and the program says at
//! `/` how to build the app.

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let web = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../web");
    let dist = web.join("dist");
    // In a package from a registry there is no web app, and nothing may be made outside of it.
    if web.join("package.json").is_file() {
        // Cargo watches a folder, but takes one that is missing for changed each time. Where it cannot be
        // made, the sources cannot change either.
        let _ = fs::create_dir_all(&dist);
        println!("cargo::rerun-if-changed={}", dist.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let mut files = Vec::new();
    let wanted = std::env::var_os("CARGO_FEATURE_WEB_APP").is_some();
    if wanted && dist.join("index.html").is_file() {
        collect(&dist.canonicalize()?, &mut files)?;
        files.sort();
    }
    let root = dist.canonicalize().unwrap_or(dist);
    let files: Vec<&PathBuf> = files.iter().filter(|file| !is_compressed(file)).collect();
    let mut table = format!(
        "pub(super) static FILES: &[File] = &TABLE;\nstatic TABLE: [File; {}] = [\n",
        files.len()
    );
    for file in files {
        let path = file.strip_prefix(&root)?.to_str().ok_or("a file name is not UTF-8")?;
        let bytes = fs::read(file)?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        write!(
            table,
            "    File {{ path: {:?}, tag: \"{:016x}\", ",
            format!("/{path}"),
            hasher.finish()
        )?;
        writeln!(
            table,
            "plain: {}, brotli: {}, gzip: {}, unpacked: std::sync::OnceLock::new() }},",
            // One form is enough: a client that accepts no compression gets the other decompressed.
            if beside(file, "gz").is_file() { "None".to_owned() } else { include(file) },
            include(&beside(file, "br")),
            include(&beside(file, "gz"))
        )?;
    }
    table.push_str("];\n");
    fs::write(PathBuf::from(std::env::var("OUT_DIR")?).join("web_app.rs"), table)?;
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

fn is_compressed(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "br" || extension == "gz")
}

/// The compressed form of a file.
fn beside(file: &Path, extension: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// A file's contents as an expression, if there is one.
fn include(file: &Path) -> String {
    if file.is_file() { format!("Some(include_bytes!({file:?}))") } else { "None".to_owned() }
}
