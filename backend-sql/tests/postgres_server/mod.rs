//! What only Postgres has: the schema, its rights and versions, joining the application's transactions, and the hazards of
//! its driver - on a real server.

mod batches;
mod disk;
mod durability;
mod hazards;
mod joining;
mod locale;
mod messages;
mod place;
mod publication;
mod row;
mod schema;
mod store;

use crate::steps;
use lockcore_conformance::servers::{self, Kind, TestResult, Trial};

pub(crate) fn trials() -> Vec<Trial> {
    [
        schema::tests(),
        joining::tests(),
        hazards::tests(),
        messages::tests(),
        store::tests(),
        row::tests(),
        batches::tests(),
        durability::tests(),
        disk::tests(),
        locale::tests(),
        publication::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A test on the shared server.
fn test<F>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    servers::trial(Kind::Postgres, name, test)
}
