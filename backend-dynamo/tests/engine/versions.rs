//! Programs of several versions in one namespace.

use lockcore::backend::StoreVersion;
use lockcore_conformance::{
    servers::{self, Kind, TestResult, Trial, trial},
    versions,
};
use uuid::Uuid;

use crate::table::Table;

pub(crate) fn tests() -> Vec<Trial> {
    vec![trial(Kind::DynamoDb, "versions::two_versions_share_a_namespace", two_versions_share_a_namespace)]
}

/// 10.4: programs of two versions at the same time, forward and back.
async fn two_versions_share_a_namespace() -> TestResult {
    let server = servers::shared(Kind::DynamoDb).await?;
    let table = Table::at(server.url()).within(&Uuid::new_v4().simple().to_string());
    table.open().await;
    let open = async |program: StoreVersion| table.builder().program_version(program).open().await;
    versions::forward_and_back(open).await;
    Ok(())
}
