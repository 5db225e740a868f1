//! The tests of this backend, many at once in one process.

mod cells;
mod conformance;
mod costs;
mod dialects;
mod doubled;
mod emulator;
mod faults;
mod front;
mod place;
mod virtual_time;

use std::process::ExitCode;

use lockcore_conformance::servers::{self, Trial};

fn main() -> ExitCode {
    let own =
        [costs::trials(), dialects::trials(), faults::trials(), virtual_time::trials()].into_iter().flatten();
    // What an emulator shows of the engine that `object` has all checks of takes leases of 10 s.
    let emulated = emulator::trials().chain(doubled::tests()).map(Trial::thorough);
    servers::run(conformance::trials().chain(emulated).chain(own).chain(cells::trials()))
}
