//! The conformance suite on an engine in this process, which needs nothing to be installed.

#[path = "../../tests/table/mod.rs"]
mod table;

use std::{net::TcpListener, process::ExitCode, sync::OnceLock};

use lockcore_conformance::servers::{checks, run};
use table::Table;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    run(checks("dynoxide", || async { Ok(Table::at(endpoint())) }))
}

/// Where the engine of this process listens, from the first call on.
fn endpoint() -> &'static str {
    static ENDPOINT: OnceLock<String> = OnceLock::new();
    ENDPOINT.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        listener.set_nonblocking(true).expect("a socket can be told not to block");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || {
            Runtime::new().expect("a runtime can be made").block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("within a runtime");
                let engine = dynoxide::Database::memory().expect("SQLite can be had in memory");
                dynoxide::server::serve_on(listener, engine).await;
            });
        });
        format!("http://{address}")
    })
}
