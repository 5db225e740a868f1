//! The whole conformance suite, on the engine that the harness finds: dynamodb-local or ministack. On the other one, in
//! process, it runs from the package `in_process`.

mod table;

use std::process::ExitCode;

use lockcore::LockDao;
use lockcore_conformance::{
    all,
    checks::contexts::odd_contexts_are_kept_apart,
    servers::{self, Completion, Kind, Trial},
};
use lockcore_dynamo::DynamoLockDao;
use table::{Table, blocking};

fn main() -> ExitCode {
    let contexts =
        Trial::ignorable_test("dynamodb::own::odd_contexts", || servers::outcome(blocking(odd_contexts())));
    // Most of the checks wait for leases to end, and may do so together.
    servers::run_many(
        16,
        all::<Table>()
            .into_iter()
            .map(|check| {
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
            })
            .chain([contexts]),
    )
}

/// Contexts of any text, which the suite's stores do not have.
async fn odd_contexts() -> servers::TestResult {
    let server = servers::shared(Kind::DynamoDb).await?;
    let builder = DynamoLockDao::<String, String>::builder()
        .endpoint(server.url().trim_end_matches('/'))
        .region("eu-central-1")
        .credentials("test", "test", None)
        .table(format!("contexts-{}", std::process::id()))
        .timeout(servers::ANSWERS);
    let dao = builder.open().await?;
    dao.migrate().await?;
    odd_contexts_are_kept_apart(&dao).await;
    Ok(())
}
