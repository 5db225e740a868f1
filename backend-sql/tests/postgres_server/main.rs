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
#[path = "../steps/mod.rs"]
mod steps;
mod store;

use std::process::ExitCode;

use lockcore_conformance::servers::{self, Kind, TestResult, Trial};

fn main() -> ExitCode {
    let tests = [
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
    ];
    servers::run(tests.into_iter().flatten())
}

/// A test on the shared server.
fn test<F>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = TestResult>,
{
    servers::trial(Kind::Postgres, name, test)
}
