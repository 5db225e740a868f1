//! Tables that are missing, or will not do.

use lockcore::{BackendError, BackendErrorKind, BreakMode, LockDao, Page, Target, backend::Withdraw};
use lockcore_conformance::{eventually, servers::TestResult};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::engine::front::{
    Fault,
    rig::{Rig, impatient},
};

pub(super) async fn a_missing_table_is_reported() -> TestResult {
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

/// What only looks, or breaks and freezes what is there, leaves a store that is not there alone.
pub(super) async fn administration_creates_no_table() -> TestResult {
    let rig = Rig::new().await?;
    let name = format!("missing-{}", Uuid::new_v4());
    let dao = rig.table.builder().table(&name).open().await?;
    let target = Target::Id("a".to_owned());
    let errors = [
        dao.list(&Page::default()).await.expect_err("there is no table"),
        dao.inspect(&target).await.expect_err("there is no table"),
        dao.break_lock(&target, 1, BreakMode::Now, "an admin").await.expect_err("there is no table"),
        dao.freeze(&target, true).await.expect_err("there is no table"),
        dao.release_context(&Uuid::new_v4()).await.expect_err("there is no table"),
    ];
    for error in errors {
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(&name) && error.to_string().contains(&rig.front.url()), "{error}");
    }
    dao.doctor().await?;
    let asked = rig.front.counted();
    assert!(!asked.keys().any(|operation| operation.contains("Create")), "{asked:?}");
    Ok(())
}

/// An error is of use only to one who knows which of several stores it came from.
pub(super) async fn every_error_says_which_table_and_where() -> TestResult {
    let rig = Rig::with(impatient).await?;
    let (caller, table, url) = (rig.caller(), rig.table.table.to_string(), rig.front.url());
    let held = rig.store.caller().take(["a"]).await;
    let says_where = |error: &BackendError| {
        let text = error.to_string();
        assert!(text.contains(&table) && text.contains(&url), "{text}");
        text
    };
    let gate = Arc::new(Notify::new());
    for fault in [
        Fault::Refuse(400, "AccessDeniedException"),
        Fault::Refuse(400, "ThrottlingException"),
        Fault::Refuse(400, "SomethingNew"),
        Fault::Proxy(502, 0),
        Fault::Wait(gate.clone()),
    ] {
        for operation in ["UpdateItem", "GetItem", "Scan", "DescribeTable"] {
            rig.front.next(operation, fault.clone(), usize::MAX);
        }
        let (request, page, target) = (caller.request(["b"]), Page::default(), &held.locks[0].target);
        let (acquired, released, renewed, withdrawn, listed, shown, opened) = tokio::join!(
            rig.dao.acquire(&request),
            rig.dao.release(&held),
            rig.dao.renew(&held),
            rig.dao.withdraw(&request, Withdraw::Undo),
            rig.dao.list(&page),
            rig.dao.inspect(target),
            impatient(rig.table.builder()).open(),
        );
        says_where(&acquired.expect_err("it is refused"));
        says_where(&released.expect_err("it is refused"));
        says_where(&renewed.expect_err("it is refused"));
        says_where(&withdrawn.expect_err("it is refused"));
        says_where(&listed.expect_err("it is refused"));
        says_where(&shown.expect_err("it is refused"));
        // A table that may not be described is opened all the same.
        if let Err(error) = opened {
            says_where(&error);
        }
        rig.front.lift();
    }
    let Rig { front, dao, .. } = rig;
    let address = front.address;
    drop(front);
    eventually("the front is gone", || async {
        tokio::net::TcpStream::connect(address).await.is_err().then_some(())
    })
    .await;
    eventually("no connection is left", || async {
        let error = dao.release(&held).await.expect_err("the table is gone");
        says_where(&error).contains("Connection refused").then_some(())
    })
    .await;
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
    assert!(error.to_string().contains(&name) && error.to_string().contains(&rig.front.url()), "{error}");
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
