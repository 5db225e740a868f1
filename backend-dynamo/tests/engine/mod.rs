//! What the suite does not check: what locks cost, where credentials come from, other clients of the same table, sets beyond one
//! transaction, and every fault of the service.

mod costs;
pub(crate) mod credentials;
mod faults;
mod front;
mod interop;
mod large_sets;
mod python;
mod versions;

use lockcore_conformance::servers::Trial;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    // They wait for leases to end, or start other programs.
    let thorough = [costs::tests(), interop::tests()].into_iter().flatten().chain(faults::tests());
    let quick = [credentials::tests(), large_sets::tests(), versions::tests()].into_iter().flatten();
    quick.chain(thorough.map(Trial::thorough))
}
