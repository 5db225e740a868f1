//! What only MySQL and MariaDB have: the schema, its rights and versions, joining the application's transactions, waking by
//! interruption and what is told then, and the hazards of their driver - on a real server of each.

mod batches;
mod disk;
mod hazards;
mod joining;
mod notifications;
mod place;
mod schema;
mod sets;
#[path = "../steps/mod.rs"]
mod steps;
mod waking;

use std::process::ExitCode;

use lockcore_conformance::servers::{self, Kind, TestResult, Trial};

fn main() -> ExitCode {
    let all = [Kind::MySql, Kind::MariaDb].map(|kind| {
        [
            schema::tests(kind),
            joining::tests(kind),
            waking::tests(kind),
            notifications::tests(kind),
            sets::tests(kind),
            batches::tests(kind),
            hazards::tests(kind),
            disk::tests(kind),
        ]
        .into_iter()
        .flatten()
    });
    servers::run(all.into_iter().flatten())
}

/// A test on the shared server of a kind.
fn test<F>(kind: Kind, name: &str, test: impl FnOnce(Kind) -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    servers::trial(kind, name, move || test(kind))
}
