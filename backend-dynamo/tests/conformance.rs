//! The conformance suite, on the engine that the harness finds: dynamodb-local or ministack. On the other one, in process, it
//! runs from the package `in_process`.

use lockcore::LockDao;
use lockcore_conformance::{
    checks::contexts::odd_contexts_are_kept_apart,
    servers::{self, Kind, Trial, checks, shared, trial},
};
use lockcore_dynamo::DynamoLockDao;

use crate::table::Table;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let suite = checks("dynamodb", || async { Ok(Table::at(shared(Kind::DynamoDb).await?.url())) });
    suite.chain([trial(Kind::DynamoDb, "own::odd_contexts", odd_contexts)])
}

/// Contexts of any text, which the suite's stores do not have.
async fn odd_contexts() -> servers::TestResult {
    let server = shared(Kind::DynamoDb).await?;
    let builder = DynamoLockDao::<String, String>::builder()
        .endpoint(server.url().trim_end_matches('/'))
        .region("eu-central-1")
        .credentials("test", "test", None)
        .table(format!("contexts-{}", std::process::id()))
        .timeout(servers::ANSWERS)
        .attempt_timeout(servers::ANSWERS / 2);
    let dao = builder.open().await?;
    dao.migrate().await?;
    odd_contexts_are_kept_apart(&dao).await;
    Ok(())
}
