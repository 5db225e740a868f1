//! Real servers for tests: found, started, paused, killed and removed again.
//!
//! [`shared`] takes the first of these that exists, [`Server::start`] the first but 1:
//!
//! 1. a URL in `LOCKCORE_TEST_REDIS_URL`, `LOCKCORE_TEST_POSTGRES_URL`, `LOCKCORE_TEST_MARIADB_URL`,
//!    `LOCKCORE_TEST_MYSQL_URL`, `LOCKCORE_TEST_DYNAMODB_URL` or `LOCKCORE_TEST_ETCD_URL`: a server that tests may use but not pause or kill. The
//!    program `with-servers` starts one of each kind for a command, such as a whole test run, and sets these variables;
//! 2. a container, where a Docker engine answers: the image in `LOCKCORE_TEST_REDIS_IMAGE` (and so
//!    on) if that is set, else the official image, else the stand-in `standin/<kind>:latest` that
//!    `tests/servers/build-images.sh` builds;
//! 3. a server program on the `PATH`, started on a free port with its files in a temporary folder;
//! 4. else [`ServerError::Unavailable`] with the reason.
//!
//! Tests that need a server are [`trial`]s of a `harness = false` test: where there is none they show
//! as ignored with the reason, or, with `LOCKCORE_REQUIRE_SERVERS=1`, as failed.
//!
//! ```no_run
//! use lockcore_conformance::servers::{self, Kind};
//!
//! fn main() -> std::process::ExitCode {
//!     servers::run(Kind::ALL.map(|kind| {
//!         servers::trial(kind, "answers", move || async move {
//!             let server = servers::shared(kind).await?;
//!             servers::wire::exchange(kind, &server.address()).await?;
//!             Ok(())
//!         })
//!     }))
//! }
//! ```
//!
//! A server is removed with everything of it when it is dropped, a panic included. What a test
//! process leaves behind when it ends without dropping (shared servers under the standard harness,
//! an abort, a SIGKILL) is removed by a guard process that outlives it for that moment.

use std::time::Duration;

mod bucket;
pub mod certificates;
mod cluster;
mod container;
mod duplicator;
mod endpoint;
mod error;
mod etcd;
mod forked;
mod guard;
pub mod http;
mod image;
mod kind;
mod mounts;
mod pooler;
mod process;
mod programs;
mod proxy;
mod replicated;
mod runtime;
mod server;
mod shared;
mod trial;
mod watched;
pub mod wire;

#[cfg(feature = "cell")]
pub use self::trial::cell_checks;
pub use self::{
    bucket::Bucket,
    cluster::Cluster,
    duplicator::{Copies, Duplicator},
    error::ServerError,
    etcd::EtcdCluster,
    forked::in_a_child,
    kind::Kind,
    mounts::Mounts,
    pooler::Pooler,
    proxy::{Counts, Mode, Proxy},
    replicated::Replicated,
    server::{Server, Way},
    shared::{forget_shared, shared},
    trial::{Ending, TestResult, Trial, checks, checks_of, outcome, run, trial, trial_by},
    watched::Watched,
};

/// What a test sets as a backend's timeout unless it is about timeouts: many tests at once on one small machine, and its
/// disk, may keep a server from answering for so long.
pub const ANSWERS: Duration = Duration::from_secs(20);

pub use libtest_mimic::{Completion, Failed};
