//! The tests of the suite itself: that it is complete, that its documents are true, and that its servers and faults work.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod docs;
mod every_backend;
mod proxy;
mod seeds;
mod servers;

use std::{env, process::ExitCode};

use lockcore_conformance::servers::run;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [hold, kind, way] if hold == "hold" => servers::hold_server(kind, way),
        _ => run([docs::tests(), every_backend::tests(), proxy::tests(), seeds::tests(), servers::tests()]
            .into_iter()
            .flatten()),
    }
}
