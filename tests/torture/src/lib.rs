//! Workers that lock random sets on any store and record what they see, for `lockcore-judge` to check: as processes that are
//! killed, stopped and replaced, or as tasks. `lockcore-chaos` and `lockctl torture` stand on it.

pub mod audit;
pub mod crew;
pub mod history;
pub mod worker;
