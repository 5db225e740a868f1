//! `lockctl` as real processes, on every store that other processes can see.

#[macro_use]
mod stores;

mod administration;
mod configuring;
mod contention;
mod dying;
mod electing;
mod looking;
mod losing;
mod migrating;
mod mistakes;
mod nesting;
mod running;
mod signals;
mod store;
mod terminal;
mod tokens;
mod versions;
mod watchdog;

use std::process::ExitCode;

use lockcore_conformance::servers;

use crate::stores::{Test, trials};

const TESTS: [&[Test]; 16] = [
    administration::TESTS,
    configuring::TESTS,
    contention::TESTS,
    dying::TESTS,
    electing::TESTS,
    looking::TESTS,
    losing::TESTS,
    migrating::TESTS,
    mistakes::TESTS,
    nesting::TESTS,
    running::TESTS,
    signals::TESTS,
    terminal::TESTS,
    tokens::TESTS,
    versions::TESTS,
    watchdog::TESTS,
];

fn main() -> ExitCode {
    // Orphans of the tests' processes become children of this one, which reaps none: as with a PID 1 that reaps late.
    nix::sys::prctl::set_child_subreaper(true).expect("Linux has it");
    servers::run(trials(&TESTS.concat()))
}
