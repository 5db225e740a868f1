//! The tests of this backend, and of its examples, in one executable.

mod book;
mod conformance;
#[path = "../examples/outage.rs"]
#[expect(dead_code, reason = "the tests of an example do not call its `main`")]
mod outage;
mod store;
mod support;
#[path = "../examples/unit_test.rs"]
#[expect(dead_code, reason = "the tests of an example do not call its `main`")]
mod unit_test;
