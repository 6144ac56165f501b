//! The `brigade` program.

fn main() {}
