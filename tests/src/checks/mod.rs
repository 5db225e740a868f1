//! The checks, by subject. Each names the promise of the contract that it guards.

pub mod admin;
pub mod cancellation;
pub mod capabilities;
pub mod contexts;
pub mod exclusion;
pub mod expiry;
pub mod fences;
pub mod histories;
pub mod ids;
pub mod queue;
pub mod reentrancy;
pub mod refusal;
pub mod release;
pub mod renewal;
pub mod resizing;
pub mod sizes;
pub mod slots;
pub mod sweep;
pub mod waiting_sets;
pub mod withdrawal;

pub use crate::service::{
    blocking, election, guards, keep_for, keeping, losing, nesting, once, outcomes, releasing, requests,
    waiting,
};
