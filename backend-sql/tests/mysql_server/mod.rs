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
mod waking;

use crate::steps;
use lockcore_conformance::servers::{self, Kind, TestResult, Trial};

pub(crate) fn trials(kind: Kind) -> Vec<Trial> {
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
    .collect()
}

/// A test on the shared server of a kind.
fn test<F>(kind: Kind, name: &str, test: impl FnOnce(Kind) -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    servers::trial(kind, name, move || test(kind))
}
