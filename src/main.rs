//! The `cota` binary.
fn main() {}
