//! Locks under faults: worker processes that lock random sets and record what they see, a driver that disturbs them, and a
//! checker of what they recorded, which knows nothing of lockcore.

pub mod backend;
pub mod clock;
mod disturb;
pub mod driver;
pub mod faults;
pub mod history;
pub mod store;
pub mod worker;

pub use lockcore_judge::check;
