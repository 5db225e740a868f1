//! The checks that every distributed lock backend of lockcore passes: for a backend of your own add it to the `dev-dependencies`, with the
//! feature `cell` if that is an adapter of `lockcore-cell`.
//!
//! A backend says how to make a store in a namespace of its own, as a [`Backend`], and instantiates the
//! suite with one macro (a complete example is `tests/third_party.rs` of `lockcore`):
//!
//! `lockcore_conformance::conformance!(my_store, MyStore);`
//!
//! This emits one `#[test]` for every check, named `my_store::group::check`. What the backend declares among
//! its [`Capabilities`](lockcore::Capabilities) is tested; what it does not declare has to be refused.
//!
//! An adapter of `lockcore-cell` has a suite of its own before that, one check for each promise of the trait `Cell`: the module
//! `cell`, with the feature of this name.
//!
//! The variables `LOCKCORE_TEST_SEED` (a number) and `LOCKCORE_TEST_CASES` choose the seed of the random
//! histories and how many are played.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod caller;
#[cfg(feature = "cell")]
pub mod cell;
pub mod checks;
pub mod fault;
pub mod hostile;
pub mod instances;
pub mod journal;
pub mod judge;
#[cfg(feature = "servers")]
pub mod line;
mod model;
pub mod own_process;
mod player;
mod polls;
#[cfg(feature = "servers")]
pub mod refusing;
mod registry;
pub mod search;
#[cfg(feature = "servers")]
pub mod servers;
pub mod service;
pub mod store;
pub mod versions;

pub use backend::Backend;
pub use caller::{Caller, Place};
pub use registry::{ALL_CHECKS, Check, SERVICE, all, run, run_as_test};
pub use store::{PATIENCE, Store, eventually, race};
