//! Whole locking services in virtual time, with faults, from one seed.
//!
//! Each simulated process is a runtime of its own with one thread and a paused clock, and all of them are driven on one thread, in
//! small steps of virtual time and in an order that the seed decides. A process dies when its runtime is dropped, and stands still
//! while it is not driven. What crosses between processes is in the hands of the simulation: the cells of a store, and the requests
//! on their way to it. No real time, no address and no random number but the seed's takes part, so that the same seed gives the
//! same history.
//!
//! `docs/src/reliability.md` says how to run it.

mod actor;
mod cells;
mod dynamo;
mod faults;
mod history;
mod liveness;
mod net;
mod plan;
mod reached;
mod run;
pub mod shrink;
pub mod table;

pub use faults::Kind;
pub use plan::{Broken, Plan, World};
pub use reached::Reached;
pub use run::{Failure, Run, run};
