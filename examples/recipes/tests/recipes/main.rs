//! The recipes as processes, where they are meant for.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod migrate;
mod singleton;

use std::process::ExitCode;

use lockcore_conformance::servers;

fn main() -> ExitCode {
    servers::run([migrate::tests(), singleton::tests()].into_iter().flatten())
}
