//! The program on generated trees, archived into a folder.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod job;
mod killed;
mod local;
mod options;
#[path = "../tree/mod.rs"]
mod tree;
