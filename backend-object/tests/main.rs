//! The tests of this backend, many at once in one process.

#[cfg(feature = "azure")]
mod azure;
mod conformance;
mod costs;
mod doubled;
mod emulator;
mod faults;
mod front;
mod place;
mod virtual_time;

use std::process::ExitCode;

use lockcore_conformance::servers::{self, Trial};

fn main() -> ExitCode {
    let own = [costs::trials(), faults::trials(), virtual_time::trials()].into_iter().flatten();
    // What an emulator shows of the engine that `object` has all checks of takes leases of 10 s.
    let emulated = emulator::trials().chain(doubled::tests()).map(Trial::thorough);
    #[cfg(feature = "azure")]
    let own = own.chain(azure::trials());
    servers::run(conformance::trials().chain(emulated).chain(own))
}
