//! Searches all schedules of small configurations: processes that lock sets, writes that are late, responses that are lost,
//! callers that give up, crashes, and a clock that is known to a second.
//!
//! The decisions are the code's own: [`Step`], [`Needs`], [`Session::extend`], [`Session::close`] and [`poll::state`]. What
//! the store does with a conditional write, and in which order a driver reads, closes and writes, is written down here. Each
//! fault that [`Fault`] puts in on purpose must be found.

mod process;
mod schedule;
mod state;
mod store;

use lockcore_conformance::search::{self, Model, search};

use self::state::State;

/// A tick, by the service's clock: as long as an offer.
const TICK: u64 = 3_000_000;
const LEASE: u64 = 2 * TICK;
/// The distance of the bounds of the service's time from it.
const SKEW: u64 = 500_000;
const BEGIN: u64 = 1_795_000_000_000_000;

/// A way to break the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// A process takes over from a holder without closing its lock to renewal first.
    NoClose,
    /// A withdrawal that finds nothing writes nothing.
    NoWrite,
    /// A lease is written to end at the lower bound of the time, and taken over after the upper one.
    SwappedBounds,
    /// Equal contents have equal versions, and withdrawals leave no tombstones.
    EqualBytes,
    /// A renewal replaces the session whatever was written meanwhile.
    BlindRenewal,
    /// A holder counts its lease from the response.
    LeaseFromResponse,
    /// A waiter takes an offer that it found for a whole lease.
    WholeOffer,
    /// Sessions are collected at once, and made again by their processes.
    SessionMadeAgain,
    /// A request does not regard who came before it.
    NoQueue,
}

/// The setup to search.
#[derive(Clone)]
struct Setup {
    /// The set that each process locks.
    sets: Vec<Vec<&'static str>>,
    /// The search ends at this tick.
    horizon: u64,
    /// The number of responses that may be lost or late.
    faults: u8,
    crashes: u8,
    renewals: u8,
    gives_up: bool,
    fault: Fault,
}

impl Setup {
    fn of(sets: &[&[&'static str]]) -> Self {
        let sets = sets.iter().map(|set| set.to_vec()).collect();
        Setup { sets, horizon: 6, faults: 1, crashes: 0, renewals: 1, gives_up: false, fault: Fault::None }
    }
}

impl Model for Setup {
    type State = State;
    type Key = u64;

    fn next(&self, state: &State) -> Vec<(String, State)> {
        state.next(self)
    }

    fn broken(&self, _before: &State, state: &State) -> Option<&'static str> {
        state.broken(self)
    }

    fn key(&self, state: &State) -> u64 {
        state.key(self)
    }
}

#[test]
fn no_schedule_breaks_a_promise() {
    let one: &[&[&str]] = &[&["a"], &["a"]];
    let chain: &[&[&str]] = &[&["a"], &["a", "b"], &["b"]];
    let setups = [
        ("a lost or late response, a renewal", Setup::of(one)),
        ("a crash, two renewals", Setup { faults: 0, crashes: 1, renewals: 2, ..Setup::of(one) }),
        ("callers that give up", Setup { gives_up: true, renewals: 0, faults: 2, ..Setup::of(one) }),
        ("sets that overlap", Setup { renewals: 0, horizon: 4, ..Setup::of(chain) }),
    ];
    for (name, setup) in setups {
        let found = search(&setup, State::new(&setup), search::most(12_000));
        println!("{name}: {} states, depth {}, complete: {}", found.states, found.depth, found.is_complete);
        assert_eq!(found.broken, None, "{name}");
    }
}

#[test]
fn each_fault_of_the_protocol_is_found() {
    let one = Setup { faults: 0, ..Setup::of(&[&["a"], &["a"]]) };
    let gives_up = Setup { gives_up: true, renewals: 0, ..one.clone() };
    let chain = Setup { renewals: 0, horizon: 3, faults: 0, ..Setup::of(&[&["a"], &["a", "b"], &["b"]]) };
    for (fault, setup) in [
        (Fault::NoClose, &one),
        (Fault::NoWrite, &gives_up),
        (Fault::SwappedBounds, &one),
        (Fault::EqualBytes, &gives_up),
        (Fault::BlindRenewal, &one),
        (Fault::LeaseFromResponse, &one),
        (Fault::WholeOffer, &one),
        (Fault::SessionMadeAgain, &one),
        (Fault::NoQueue, &chain),
    ] {
        let setup = Setup { fault, ..setup.clone() };
        let found = search(&setup, State::new(&setup), 400_000);
        println!("{fault:?}: {} states, depth {}, {:?}", found.states, found.depth, found.broken);
        assert!(found.broken.is_some(), "{fault:?} is not found in {} states", found.states);
    }
}
