//! The whole conformance suite, on the engine that the harness finds: dynamodb-local or ministack. On the other one, in
//! process, it runs from the package `in_process`.

mod table;

use std::process::ExitCode;

use lockcore_conformance::{
    all,
    servers::{self, Completion, Kind, Trial},
};
use table::{Table, blocking};

fn main() -> ExitCode {
    // Most of the checks wait for leases to end, and may do so together.
    servers::run_many(
        16,
        all::<Table>().into_iter().map(|check| {
            Trial::ignorable_test(format!("dynamodb::{}", check.name), move || {
                let server = blocking(servers::shared(Kind::DynamoDb));
                match server {
                    Ok(server) => {
                        lockcore_conformance::run(Table::at(server.url()), check.run);
                        Ok(Completion::Completed)
                    }
                    Err(missing) => servers::outcome(Err(missing.into())),
                }
            })
        }),
    )
}
