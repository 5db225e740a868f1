//! `lockctl` as real processes, on every store that other processes can see.

#[macro_use]
mod stores;

mod administration;
mod contention;
mod dying;
mod losing;
mod migrating;
mod mistakes;
mod running;
mod signals;
mod store;
mod terminal;
mod tokens;

use std::process::ExitCode;

use lockcore_conformance::servers;

use crate::stores::{Test, trials};

const TESTS: [&[Test]; 10] = [
    administration::TESTS,
    contention::TESTS,
    dying::TESTS,
    losing::TESTS,
    migrating::TESTS,
    mistakes::TESTS,
    running::TESTS,
    signals::TESTS,
    terminal::TESTS,
    tokens::TESTS,
];

fn main() -> ExitCode {
    servers::run(trials(&TESTS.concat()))
}
