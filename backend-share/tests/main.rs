//! The tests of this backend, many at once in one process.

mod conformance;
mod sshfs;

use std::process::ExitCode;

use lockcore_conformance::servers;

fn main() -> ExitCode {
    servers::run(conformance::trials().chain(sshfs::trials()).chain([conformance::costs()]))
}
