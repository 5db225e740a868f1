//! The tests of this backend, many at once in one process.

mod cluster;
mod conformance;
mod faults;
mod front;
mod login;
mod raw;
mod several;

use std::process::ExitCode;

use lockcore_conformance::servers;

fn main() -> ExitCode {
    let own = [cluster::trials(), faults::trials(), login::trials(), several::trials()].into_iter().flatten();
    servers::run(conformance::trials().chain(own).chain([conformance::costs()]))
}
