//! The tests of this backend, and of its examples, in one executable. Built with `--cfg shuttle` it has the model checks instead.

#[cfg(not(shuttle))]
mod conformance;
#[cfg(not(shuttle))]
#[path = "../examples/outage.rs"]
#[expect(dead_code, reason = "the tests of an example do not call its `main`")]
mod outage;
#[cfg(shuttle)]
mod shuttle;
#[cfg(not(shuttle))]
mod store;
mod support;
#[cfg(not(shuttle))]
#[path = "../examples/unit_test.rs"]
#[expect(dead_code, reason = "the tests of an example do not call its `main`")]
mod unit_test;
