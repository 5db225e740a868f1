//! The whole conformance suite on an engine in this process, which needs nothing to be installed.

#[path = "../../tests/table/mod.rs"]
mod table;

use std::{net::TcpListener, process::ExitCode, sync::OnceLock};

use lockcore_conformance::{
    all,
    servers::{self, Completion, Trial},
};
use table::{Table, blocking};

fn main() -> ExitCode {
    // Most of the checks wait for leases to end, and may do so together.
    let trials = all::<Table>().into_iter().map(|check| {
        Trial::ignorable_test(format!("dynoxide::{}", check.name), move || {
            lockcore_conformance::run(Table::at(endpoint()), check.run);
            Ok(Completion::Completed)
        })
    });
    servers::run_many(16, trials)
}

/// Where the engine of this process listens, from the first call on.
fn endpoint() -> &'static str {
    static ENDPOINT: OnceLock<String> = OnceLock::new();
    ENDPOINT.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("a socket can be told not to block");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            blocking(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("within a runtime");
                let engine = dynoxide::Database::memory().expect("SQLite can be had in memory");
                dynoxide::server::serve_on(listener, engine).await;
            });
        });
        format!("http://{address}")
    })
}
