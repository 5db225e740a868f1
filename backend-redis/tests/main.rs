//! The tests of the Redis backend: the suite on each kind of server, the line to it, and what only Redis shows.

mod conformance;
mod line;
mod server;

use std::process::ExitCode;

use lockcore_conformance::servers;

fn main() -> ExitCode {
    servers::run(conformance::trials().chain(line::trials()).chain(server::trials()))
}
