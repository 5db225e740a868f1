//! `lockctl` as real processes, on every store that other processes can see.

#[macro_use]
mod stores;

mod administration;
mod aws;
mod configuring;
mod contention;
mod dying;
mod electing;
mod looking;
mod losing;
mod migrating;
mod mistakes;
mod nesting;
mod once;
mod opening;
mod recipes;
mod running;
mod signals;
mod store;
mod terminal;
mod tokens;
mod torturing;
mod versions;
mod watchdog;

use std::process::{self, ExitCode};

use lockcore_conformance::servers;
use tokio::signal::unix::{self, SignalKind};

use crate::stores::{Test, trials};

const TESTS: [&[Test]; 21] = [
    administration::TESTS,
    aws::TESTS,
    configuring::TESTS,
    contention::TESTS,
    dying::TESTS,
    electing::TESTS,
    looking::TESTS,
    losing::TESTS,
    migrating::TESTS,
    mistakes::TESTS,
    nesting::TESTS,
    once::TESTS,
    opening::TESTS,
    recipes::TESTS,
    running::TESTS,
    signals::TESTS,
    terminal::TESTS,
    tokens::TESTS,
    torturing::TESTS,
    versions::TESTS,
    watchdog::TESTS,
];

fn main() -> ExitCode {
    // Orphans of the tests' processes become children of this one, which reaps none: as with a PID 1 that reaps late.
    nix::sys::prctl::set_child_subreaper(true).expect("Linux has it");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    heed_signals(&runtime).expect("handlers of signals");
    servers::run(trials(&TESTS.concat()))
}

/// Undoes that these tests were started with signals ignored, as a shell does with SIGINT for a job in the background, and `nohup`
/// with SIGHUP. What is ignored would be ignored by every `lockctl` too; a handler is not passed on.
fn heed_signals(runtime: &tokio::runtime::Runtime) -> std::io::Result<()> {
    let _entered = runtime.enter();
    for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()] {
        let mut signals = unix::signal(kind)?;
        runtime.spawn(async move {
            signals.recv().await;
            process::exit(128 + kind.as_raw_value())
        });
    }
    Ok(())
}
