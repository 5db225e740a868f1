//! Responses that are lost or forged, requests that are late, objects that others delete.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use lockcore::{
    BackendErrorKind, LockDao, LossReason, Severity, Target,
    backend::{Acquired, Withdraw},
};
use lockcore_conformance::{
    Backend, Caller, eventually,
    judge::in_time,
    servers::{TestResult, Trial},
};
use lockcore_object::ObjectLockDao;
use object_store::{ObjectStore, ObjectStoreExt, path::Path};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::{
    front::{Fault, Front, refusal},
    place::{self, Bucket},
};

type Dao = ObjectLockDao<String, Uuid>;

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident)*) => { vec![$(trial(stringify!($name), $name)),*] };
    }
    trials! {
        a_grant_whose_response_is_lost_is_recognized
        an_error_after_the_write_is_no_refusal
        two_writes_at_once_are_no_conflict
        a_release_whose_response_is_lost_is_done
        a_write_after_the_withdrawal_takes_nothing
        a_renewal_whose_response_is_lost_is_done
        wrong_dates_take_nothing_early
        responses_of_a_proxy_tell_no_time
        a_store_without_conditions_is_refused
        the_doctor_names_the_rules_of_the_bucket
        a_deleted_table_is_a_loss
        a_deleted_session_is_no_loss
        a_session_that_cannot_be_read_stops_no_other
        another_format_is_left_alone
        a_bucket_that_is_missing_is_named
        a_bucket_of_another_region_is_named_with_its_region
        a_bucket_with_object_lock_gets_a_checksum
        a_right_to_list_that_is_missing_is_named
        a_sweep_leaves_what_others_put_into_its_folder
        secrets_are_not_shown
        sixteen_processes_lose_nothing
    }
}

/// A namespace of an emulator, and a front before it.
struct Rig {
    bucket: Bucket,
    front: Front,
}

impl Rig {
    async fn new(bucket: Bucket) -> std::io::Result<Self> {
        let front = Front::before(&bucket.endpoint).await?;
        Ok(Rig { bucket, front })
    }

    /// Through the front.
    async fn dao(&self) -> Result<Arc<Dao>, lockcore::BackendError> {
        let through = Bucket { endpoint: self.front.url(), ..self.bucket.clone() };
        Ok(Arc::new(through.builder().own_clock().open().await?))
    }

    /// Beside the front.
    async fn other(&self) -> Arc<Dao> {
        Arc::new(self.bucket.reopen(&self.bucket).await.expect("the store is shared"))
    }

    /// The bucket, to do in it what others may do.
    fn objects(&self) -> object_store::Result<impl ObjectStore> {
        object_store::aws::AmazonS3Builder::new()
            .with_endpoint(&*self.bucket.endpoint)
            .with_allow_http(true)
            .with_region("us-east-1")
            .with_bucket_name(place::BUCKET)
            .with_access_key_id("test")
            .with_secret_access_key("test")
            .build()
    }

    fn path(&self, name: &str) -> Path {
        Path::parse(format!("lockcore/{}/{name}", self.bucket.namespace)).expect("a plain name")
    }
}

fn caller(dao: &Arc<Dao>) -> Caller<Dao> {
    Caller::new(dao.clone(), Duration::from_secs(60))
}

fn trial<F>(name: &str, test: fn(Rig) -> F) -> Trial
where
    F: Future<Output = TestResult> + 'static,
{
    place::trial(&format!("faults::{name}"), move |bucket| async move { test(Rig::new(bucket).await?).await })
}

async fn a_grant_whose_response_is_lost_is_recognized(rig: Rig) -> TestResult {
    let (dao, other) = (rig.dao().await?, rig.other().await);
    rig.front.next("/table", Fault::LoseResponse);
    caller(&dao).take(["first"]).await;
    // Also where the table is there, and where another process writes before this one looks.
    rig.front.next("PUT", Fault::LoseResponse);
    let gate = Arc::new(Notify::new());
    rig.front.next("GET", Fault::Hold(gate.clone()));
    let (one, two) = (caller(&dao), caller(&other));
    let target = Target::Id("a".to_owned());
    let (held, ()) = tokio::join!(one.take(["a", "b"]), async {
        eventually("the write was made", async || {
            let seen = other.inspect(&target).await.expect("an answer");
            (!seen.holders.is_empty()).then_some(())
        })
        .await;
        two.take(["c"]).await;
        gate.notify_one();
    });
    assert!(rig.front.is_over());
    assert_eq!(two.refused(["a"]).await.len(), 1);
    one.free(&held).await;
    two.take(["a", "b"]).await;
    Ok(())
}

async fn an_error_after_the_write_is_no_refusal(rig: Rig) -> TestResult {
    let dao = rig.dao().await?;
    let one = caller(&dao);
    let first = one.take(["a"]).await;
    for status in [500, 503] {
        rig.front.next("PUT", Fault::DoAndRefuse(status));
        let second = caller(&dao);
        let held = second.take(["b"]).await;
        second.free(&held).await;
    }
    one.free(&first).await;
    assert!(rig.front.is_over());
    Ok(())
}

/// 409 says that the write was not made, and not that another one was: it is sent again.
async fn two_writes_at_once_are_no_conflict(rig: Rig) -> TestResult {
    let dao = rig.dao().await?;
    for _ in 0..2 {
        rig.front.next("PUT", Fault::Refuse(409));
        rig.front.next("PUT", Fault::Refuse(503));
        let one = caller(&dao);
        let held = one.take(["a"]).await;
        one.free(&held).await;
    }
    assert!(rig.front.is_over());
    Ok(())
}

async fn a_release_whose_response_is_lost_is_done(rig: Rig) -> TestResult {
    let (dao, other) = (rig.dao().await?, rig.other().await);
    let one = caller(&dao);
    let held = one.take(["a", "b"]).await;
    rig.front.next("PUT", Fault::LoseResponse);
    one.free(&held).await;
    caller(&other).take(["a", "b"]).await;
    Ok(())
}

async fn a_write_after_the_withdrawal_takes_nothing(rig: Rig) -> TestResult {
    let (dao, other) = (rig.dao().await?, rig.other().await);
    let one = caller(&dao);
    let first = one.take(["x"]).await;
    let gate = Arc::new(Notify::new());
    rig.front.next("PUT", Fault::Hold(gate.clone()));
    let late = one.request(["a"]);
    let asked = dao.acquire(&late);
    // Dropped while its write is held back.
    assert!(tokio::time::timeout(Duration::from_millis(300), asked).await.is_err());
    other.withdraw(&late, Withdraw::Undo).await?;
    gate.notify_one();
    eventually("the late write was refused", async || {
        let seen = other.inspect(&lockcore::Target::Id("a".to_owned())).await.ok()?;
        (rig.front.is_over() && seen.holders.is_empty()).then_some(())
    })
    .await;
    one.free(&first).await;
    let two = caller(&other);
    let free = two.take(["a"]).await;
    two.free(&free).await;
    match dao.acquire(&late).await {
        Err(error) => assert_eq!(error.kind(), BackendErrorKind::Withdrawn),
        other => panic!("a withdrawn request was not refused: {other:?}"),
    }
    Ok(())
}

async fn a_renewal_whose_response_is_lost_is_done(rig: Rig) -> TestResult {
    let dao = rig.dao().await?;
    let one = caller(&dao);
    let held = one.take(["a"]).await;
    for fault in [Fault::LoseResponse, Fault::Refuse(409)] {
        rig.front.next("/session/", fault);
        // A renewal is written only if it ends later, by an estimate of the time that may have become narrower.
        eventually("a renewal is written", || async {
            one.keep(&held).await;
            rig.front.is_over().then_some(())
        })
        .await;
    }
    one.free(&held).await;
    Ok(())
}

/// A burst of responses with a wrong date, as of one host of the service, widens what is known and takes nothing over.
async fn wrong_dates_take_nothing_early(rig: Rig) -> TestResult {
    let (dao, other) = (rig.dao().await?, rig.other().await);
    let holder = caller(&other);
    let held = holder.take(["a"]).await;
    caller(&dao).refused(["a"]).await;
    // Wrong dates that agree for so long are those of a clock that was set.
    const AGREEMENT: Duration = Duration::from_secs(6);
    for ahead in [3600, -3600] {
        rig.front.shift_date(ahead);
        let begun = Instant::now();
        for _ in 0..5 {
            let answer = dao.acquire(&caller(&dao).request(["a"])).await?;
            in_time(begun.elapsed(), AGREEMENT);
            assert!(matches!(answer, Acquired::Refused(_)), "{answer:?}");
        }
    }
    rig.front.shift_date(0);
    holder.keep(&held).await;
    holder.free(&held).await;
    caller(&dao).take(["a"]).await;
    Ok(())
}

async fn responses_of_a_proxy_tell_no_time(rig: Rig) -> TestResult {
    rig.front.is_proxy();
    let dao = rig.dao().await?;
    let request = caller(&dao).request(["a"]);
    let error = dao.acquire(&request).await.expect_err("nothing tells the time");
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("Date"), "{error}");
    Ok(())
}

async fn a_store_without_conditions_is_refused(rig: Rig) -> TestResult {
    rig.front.drop_conditions();
    let error = rig.dao().await.expect_err("it excludes nothing");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("ignores the condition"), "{error}");
    Ok(())
}

async fn the_doctor_names_the_rules_of_the_bucket(rig: Rig) -> TestResult {
    let warnings = async || {
        let findings = rig.dao().await?.doctor().await?;
        let warnings = findings.iter().filter(|finding| finding.severity == Severity::Warning);
        Ok::<_, lockcore::BackendError>(warnings.map(|finding| finding.check).collect::<Vec<_>>())
    };
    let mut expected: Vec<&str> = Vec::new();
    assert_eq!(warnings().await?, expected);
    for (name, value, check) in [
        ("x-amz-version-id", "3HL4kqtJlcpXroDTDmJ", "versions of objects"),
        (
            "x-amz-expiration",
            r#"expiry-date="Fri, 21 Dec 2029 00:00:00 GMT", rule-id="all""#,
            "lifecycle rules",
        ),
        ("x-amz-object-lock-mode", "COMPLIANCE", "object lock"),
    ] {
        rig.front.add_header(name, value);
        expected.push(check);
        assert_eq!(warnings().await?, expected, "{name}");
    }
    Ok(())
}

async fn a_deleted_table_is_a_loss(rig: Rig) -> TestResult {
    let dao = rig.dao().await?;
    let one = caller(&dao);
    let held = one.take(["a"]).await;
    rig.objects()?.delete(&rig.path("table")).await?;
    let lost: Vec<_> = one.renew(&held).await.lost.iter().map(|lost| lost.reason).collect();
    assert_eq!(lost, [LossReason::Vanished]);
    let next = caller(&dao).take(["a"]).await;
    assert!(next.locks[0].granted.fence > held.locks[0].granted.fence);
    Ok(())
}

/// What was renewed lasts by the object of the session: without it others wait for a lease, and its process goes on in the table.
async fn a_deleted_session_is_no_loss(rig: Rig) -> TestResult {
    let (dao, other) = (rig.dao().await?, rig.other().await);
    let lease = Duration::from_secs(3);
    let one = caller(&dao).with_lease(lease);
    let held = one.take(["a"]).await;
    let objects = rig.objects()?;
    eventually("the table says that there is a session", || async {
        one.keep(&held).await;
        let table = objects.get(&rig.path("table")).await.ok()?.bytes().await.ok()?;
        String::from_utf8_lossy(&table).contains("\"there\"").then_some(())
    })
    .await;
    let sessions =
        futures_util::TryStreamExt::try_collect::<Vec<_>>(objects.list(Some(&rig.path("session")))).await?;
    assert_eq!(sessions.len(), 1);
    objects.delete(&sessions[0].location).await?;
    let (begun, two) = (Instant::now(), caller(&other));
    while begun.elapsed() < 2 * lease {
        one.keep(&held).await;
        assert_eq!(two.refused(["a"]).await.len(), 1, "it is renewed");
    }
    one.free(&held).await;
    two.take(["a"]).await;
    Ok(())
}

/// The locks of that session count as held, and nothing else is concerned: neither requests nor lists, sweeps and restarts.
async fn a_session_that_cannot_be_read_stops_no_other(rig: Rig) -> TestResult {
    let (dao, other) = (rig.dao().await?, rig.other().await);
    let short = Duration::from_secs(2);
    let spoiled = caller(&dao).with_lease(short);
    let lost = spoiled.take(["bad"]).await;
    spoiled.keep(&lost).await;
    let objects = rig.objects()?;
    let sessions =
        futures_util::TryStreamExt::try_collect::<Vec<_>>(objects.list(Some(&rig.path("session")))).await?;
    assert_eq!(sessions.len(), 1);
    objects.put(&sessions[0].location, b"by another".to_vec().into()).await?;
    // Its own process is the first to learn it.
    eventually("its lease by the table is over", || async {
        let renewed = dao.renew(&lost).await;
        renewed.is_err().then_some(())
    })
    .await;
    let (one, two) = (caller(&other), caller(&other));
    let held = one.take(["a"]).await;
    let begun = Instant::now();
    while begun.elapsed() < short * 2 {
        assert_eq!(two.refused(["a", "bad", "free"]).await.len(), 2, "nothing tells that its lease is over");
        one.keep(&held).await;
        let listing = other.list(&lockcore::Page::default()).await?;
        let unreadable: Vec<_> = listing.ids.iter().map(|seen| seen.unreadable.is_some()).collect();
        assert_eq!(unreadable, [false, true], "{listing:?}");
        let why = listing.ids[1].unreadable.as_deref().unwrap_or_default();
        assert!(why.contains(sessions[0].location.filename().expect("a name")), "{why}");
        other.sweep(100, None).await?;
    }
    assert_eq!(other.release_context(&one.request(["a"]).context).await?.len(), 1);
    two.free(&two.take(["a"]).await).await;
    objects.delete(&sessions[0].location).await?;
    two.take_soon(["bad"]).await;
    Ok(())
}

async fn another_format_is_left_alone(rig: Rig) -> TestResult {
    let dao = rig.dao().await?;
    let held = caller(&dao).take(["a"]).await;
    let (objects, path) = (rig.objects()?, rig.path("table"));
    let newer = br#"{"format":7,"a newer program":"wrote this"}"#;
    objects.put(&path, newer.to_vec().into()).await?;
    let request = caller(&dao).request(["b"]);
    let error = dao.acquire(&request).await.expect_err("it cannot be read");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(!error.in_doubt() && error.to_string().contains("format 7"), "{error}");
    dao.release(&held).await.expect_err("it cannot be read");
    assert_eq!(objects.get(&path).await?.bytes().await?, newer.as_slice());
    objects.put(&path, b"locked by me".to_vec().into()).await?;
    let error = dao.acquire(&request).await.expect_err("it cannot be read");
    assert_eq!(error.kind(), BackendErrorKind::Corrupt, "{error}");
    Ok(())
}

async fn a_bucket_that_is_missing_is_named(rig: Rig) -> TestResult {
    let builder = rig.bucket.builder().s3("no-such-bucket");
    let error = builder.open().await.expect_err("there is no bucket");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("no-such-bucket"), "{error}");
    let error = rig.bucket.builder().option("no_such_option", "s3cr3t").open().await;
    let error = error.expect_err("there is no such option");
    assert_eq!(error.kind(), BackendErrorKind::BadSetting, "{error}");
    assert!(error.to_string().contains("no_such_option") && !error.to_string().contains("s3cr3t"), "{error}");
    Ok(())
}

async fn a_bucket_of_another_region_is_named_with_its_region(rig: Rig) -> TestResult {
    rig.front.refuse(|_, status| {
        let mut moved = refusal(301, "PermanentRedirect", "use another endpoint");
        moved.headers.push(("x-amz-bucket-region".to_owned(), "eu-central-1".to_owned()));
        status.is_none().then_some(moved)
    });
    let error = rig.dao().await.expect_err("it is elsewhere");
    assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("the bucket is in the region eu-central-1: name it, "), "{error}");
    Ok(())
}

async fn a_bucket_with_object_lock_gets_a_checksum(rig: Rig) -> TestResult {
    rig.front.refuse(|request, status| {
        let has_one = request
            .headers
            .iter()
            .any(|(name, _)| name == "content-md5" || name.starts_with("x-amz-checksum-"));
        let bare = status.is_none() && request.first.starts_with("PUT") && !has_one;
        bare.then(|| refusal(400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required"))
    });
    let one = caller(&rig.dao().await?);
    let held = one.take(["a"]).await;
    one.keep(&held).await;
    one.free(&held).await;
    Ok(())
}

async fn a_right_to_list_that_is_missing_is_named(rig: Rig) -> TestResult {
    rig.front.refuse(|request, status| {
        let is_missing = status == Some(404) && request.first.starts_with("GET");
        is_missing.then(|| refusal(403, "AccessDenied", "Access Denied"))
    });
    let error = rig.dao().await.expect_err("the table is missing");
    assert_eq!(error.kind(), BackendErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("where s3:ListBucket is not allowed"), "{error}");
    Ok(())
}

/// Applications have objects below the same prefix, and namespaces may be called as the folder of the sessions.
async fn a_sweep_leaves_what_others_put_into_its_folder(rig: Rig) -> TestResult {
    let (dao, ended) = (rig.dao().await?, rig.other().await);
    let one = caller(&ended);
    let held = one.take(["a"]).await;
    eventually("a renewal writes the session's object", || async {
        one.keep(&held).await;
        let found = rig.objects().ok()?.list_with_delimiter(Some(&rig.path("session"))).await.ok()?;
        (!found.objects.is_empty()).then_some(())
    })
    .await;
    one.free(&held).await;
    let objects = rig.objects()?;
    let theirs = ["session/user-42.json", "session/table", "session/sub/0123456789abcdef0123456789abcdef"];
    for name in theirs {
        objects.put(&rig.path(name), b"precious".to_vec().into()).await?;
    }
    rig.bucket.advance(&rig.bucket, Duration::from_secs(48 * 3600)).await;
    dao.sweep(100, None).await?;
    let left: Vec<_> =
        futures_util::TryStreamExt::try_collect(objects.list(Some(&rig.path("session")))).await?;
    let mut left: Vec<String> = left.iter().map(|object| object.location.to_string()).collect();
    let mut expected = theirs.map(|name| rig.path(name).to_string());
    left.sort();
    expected.sort();
    assert_eq!(left, expected, "and the ended session's object is removed");
    Ok(())
}

async fn secrets_are_not_shown(rig: Rig) -> TestResult {
    let builder = rig.bucket.builder().option("secret_access_key", "s3cr3t-value");
    assert!(!format!("{builder:?}").contains("s3cr3t"), "{builder:?}");
    let dao = builder.open().await?;
    assert!(!format!("{dao:?}").contains("s3cr3t"), "{dao:?}");
    Ok(())
}

/// Each adds four to one number, under its lock, and each addition is there in the end.
async fn sixteen_processes_lose_nothing(rig: Rig) -> TestResult {
    let number = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let mut workers = Vec::new();
    for _ in 0..16 {
        let (dao, number) = (rig.other().await, number.clone());
        workers.push(tokio::spawn(async move {
            for _ in 0..4 {
                let one = caller(&dao);
                let held = one.take_in_turn(["number"]).await;
                let seen = number.load(std::sync::atomic::Ordering::SeqCst);
                tokio::task::yield_now().await;
                number.store(seen + 1, std::sync::atomic::Ordering::SeqCst);
                one.free(&held).await;
            }
        }));
    }
    for worker in workers {
        worker.await?;
    }
    assert_eq!(number.load(std::sync::atomic::Ordering::SeqCst), 64);
    Ok(())
}
