//! Tables that are missing, or will not do.

use lockcore::{BackendErrorKind, LockDao};
use lockcore_conformance::servers::TestResult;
use serde_json::{Value, json};
use std::sync::Arc;
use uuid::Uuid;

use crate::front::{Fault, rig::Rig};

pub(super) async fn a_missing_table_is_told() -> TestResult {
    let rig = Rig::new().await?;
    let name = format!("missing-{}", Uuid::new_v4());
    let dao = Arc::new(rig.table.builder().table(name).open().await?);
    let caller = rig.store.caller().through(&dao);
    let error = dao.acquire(&caller.request(["a"])).await.expect_err("there is no table");
    assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Misconfigured, false), "{error}");
    assert!(error.to_string().contains("lockctl migrate"), "{error}");
    let findings = dao.doctor().await?;
    assert!(findings.iter().any(|found| found.severity == lockcore::Severity::Error), "{findings:?}");
    dao.migrate().await?;
    caller.take(["a"]).await;
    Ok(())
}

pub(super) async fn another_key_schema_is_refused() -> TestResult {
    let rig = Rig::new().await?;
    let table = &rig.table;
    let name = format!("other-{}", Uuid::new_v4());
    let other = table.builder().table(&name).id_attribute("key").open().await?;
    other.migrate().await?;
    let error = table.builder().table(&name).open().await.expect_err("its key has another name");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("\"id\"") && error.to_string().contains("key (HASH)"), "{error}");
    Ok(())
}

/// Two regions that are eventually consistent could grant the same lock, and where they are strongly consistent the
/// service makes no transactions; the engines know no regions, so that the front adds what it would tell of them.
pub(super) async fn replicas_in_other_regions_are_refused() -> TestResult {
    let rig = Rig::new().await?;
    let replica =
        |status: &str| json!({ "Replicas": [{ "RegionName": "us-east-1", "ReplicaStatus": status }] });
    let with = |mut more: Value, key: &str, value: &str| {
        more[key] = value.into();
        more
    };
    for (description, refused) in [
        (replica("ACTIVE"), Some("eventually consistent")),
        (replica("CREATING"), Some("eventually consistent")),
        (with(replica("ACTIVE"), "MultiRegionConsistency", "EVENTUAL"), Some("eventually consistent")),
        (json!({ "GlobalTableVersion": "2017.11.29" }), Some("eventually consistent")),
        (with(replica("ACTIVE"), "MultiRegionConsistency", "STRONG"), Some("no transactions")),
        (with(replica("DELETING"), "GlobalTableVersion", "2019.11.21"), None),
        (json!({ "Replicas": [] }), None),
    ] {
        rig.front.next("DescribeTable", Fault::Described(description.clone()), usize::MAX);
        let opened = rig.table.builder().open().await;
        let migrated = rig.dao.migrate().await;
        for (step, outcome) in [("open", opened.map(drop)), ("migrate", migrated)] {
            match (outcome, refused) {
                (Err(error), Some(why)) => {
                    assert_eq!(
                        (error.kind(), error.is_retryable()),
                        (BackendErrorKind::Misconfigured, false)
                    );
                    assert!(error.to_string().contains(why), "{error}");
                }
                (Ok(()), None) => {}
                other => panic!("{step} with {description}: {other:?}"),
            }
        }
        rig.front.lift();
    }
    Ok(())
}
