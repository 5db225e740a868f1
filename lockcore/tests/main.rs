//! The tests of the core, and of its examples, in one executable.

mod calls;
#[cfg(feature = "metrics")]
mod exporter;
mod fork;
#[path = "../examples/guarded_write.rs"]
mod guarded_write;
mod logging;
#[path = "../examples/one_writer_per_object.rs"]
mod one_writer_per_object;
mod service;
mod third_party;
mod tracing;
#[path = "../examples/worker_pool.rs"]
mod worker_pool;
