//! The program on generated trees, archived into a folder and into a bucket.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod job;
mod killed;
mod local;
mod options;
#[cfg(feature = "s3")]
mod s3;
#[path = "../tree/mod.rs"]
mod tree;

use std::process::ExitCode;

use lockcore_conformance::servers;

fn main() -> ExitCode {
    let tests = [
        job::tests(),
        killed::tests(),
        options::tests(),
        #[cfg(feature = "s3")]
        s3::tests(),
    ];
    servers::run(tests.into_iter().flatten())
}
