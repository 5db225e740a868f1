//! SQLite; being built.

fn main() {}
