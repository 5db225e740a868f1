//! The tests of this backend, many at once in one process.

mod conformance;
mod engine;
mod table;

use std::process::ExitCode;

use lockcore_conformance::servers;

fn main() -> ExitCode {
    if let Some(done) = engine::credentials::as_the_environment_says() {
        return done;
    }
    // The engine does one thing at a time: with more tests at once its answers come later than some of them wait.
    servers::run(conformance::trials().chain(engine::trials()).map(|trial| trial.at_once("engine", 8)))
}
