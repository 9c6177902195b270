//! Gives the linker the memory map.

use std::path::PathBuf;
use std::{env, fs, io};

/// Flash that the program may use; with the pages of settings and ticket, 48 KiB.
const BUDGET: &str = "46K";
/// The same with options (a key of another kind, DHCP), for which there is no budget but the chip.
const WITH_OPTIONS: &str = "78K";

fn main() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::copy("memory.x", out.join("memory.x"))?;
    let options = ["CARGO_FEATURE_DHCP", "CARGO_FEATURE_P256", "CARGO_FEATURE_OVERFLOW"];
    let with = options.iter().any(|option| env::var_os(option).is_some());
    let length = if with { WITH_OPTIONS } else { BUDGET };
    fs::write(out.join("flash.x"), format!("FLASH : ORIGIN = 0x00000000, LENGTH = {length}\n"))?;
    // cortex-m-rt wants the names of the device's interrupts: none is used.
    fs::write(out.join("device.x"), "")?;
    println!("cargo:rustc-link-search={}", out.display());
    println!("cargo:rerun-if-changed=memory.x");
    Ok(())
}
