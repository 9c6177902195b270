//! The fulmar program.
fn main() {}
