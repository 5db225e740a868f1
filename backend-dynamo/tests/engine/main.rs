//! What the suite does not check: what locks cost, where credentials come from, other clients of the same table, sets beyond one
//! transaction, and every fault of the service.

mod costs;
mod credentials;
mod faults;
mod front;
mod interop;
mod large_sets;
mod python;
#[path = "../table/mod.rs"]
mod table;
mod versions;

use std::process::ExitCode;

use lockcore_conformance::servers;

fn main() -> ExitCode {
    if let Some(done) = credentials::as_the_environment_says() {
        return done;
    }
    // One after the other, and nothing beside them: they measure.
    let measured = servers::run_many(1, costs::tests());
    let others =
        [credentials::tests(), faults::tests(), interop::tests(), large_sets::tests(), versions::tests()];
    let tested = servers::run_many(8, others.into_iter().flatten());
    if measured == ExitCode::SUCCESS { tested } else { measured }
}
