//! Locks under faults: a driver that starts stores and workers and disturbs them. The workers are those of `lockcore-torture`, and
//! `lockcore-judge` checks what they recorded.

pub mod backend;
pub mod clock;
mod disturb;
pub mod driver;
pub mod faults;
pub mod store;

pub use lockcore_judge::check;
pub use lockcore_torture::worker;
