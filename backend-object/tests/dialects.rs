//! Each service in its dialect, as its documents say that it answers: what an emulator of one of them cannot show.

use std::{sync::Arc, time::Duration};

use lockcore::{LockDao, LockingService, Wait};
use lockcore_conformance::{
    Backend, Caller, eventually,
    instances::SAMPLE,
    servers::{self, TestResult, Trial, checks_of},
};
use lockcore_object::ObjectLockDao;
use tokio::runtime::Runtime;

use crate::{
    cells::own,
    front::{Dialect, Fault, Front, Policy},
    place::Bucket,
};

const ALL: [(&str, Dialect); 4] =
    [("s3", Dialect::S3), ("gcs", Dialect::Gcs), ("azure", Dialect::Azure), ("r2", Dialect::R2)];

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! flows {
        ($($name:ident)*) => {
            ALL.iter().flat_map(|&(of, dialect)| [$(trial(&format!("{of}::{}", stringify!($name)), dialect, $name)),*])
        };
    }
    let flows = flows! {
        a_set_is_taken_and_freed
        a_lease_is_renewed
        a_waiter_is_handed_over_to
        a_dead_holder_is_taken_over_from
        a_limit_of_writes_is_waited_out
        what_ended_is_collected
        a_bucket_that_is_missing_is_named
        a_proxy_without_ids_tells_no_time
        what_a_cache_kept_tells_no_time
        a_proxy_that_changes_tags_of_reads_is_named
        a_request_that_arrived_in_part_is_sent_again
        the_shortest_lease_fits_the_limit_of_writes
        two_endpoints_have_a_clock_each
    };
    // The checks of the DAO where requests differ; what R2 answers otherwise than S3 the flows show.
    let is_one = |check: &str| SAMPLE.contains(&check);
    let only = [
        trial(
            "s3::the_policy_has_the_rights_that_are_needed",
            Dialect::S3,
            the_policy_has_the_rights_that_are_needed,
        ),
        trial("own::a_step_of_the_clock_is_followed", Dialect::S3, a_step_of_the_clock_is_followed),
    ];
    let gcs = checks_of("dialects::gcs", is_one, async || Ok(Service(Dialect::Gcs)));
    let azure = checks_of("dialects::azure", is_one, async || Ok(Service(Dialect::Azure)));
    flows.chain(only).chain(gcs.chain(azure).map(Trial::thorough)).collect()
}

/// A namespace of a service, behind a front.
struct Rig {
    dialect: Dialect,
    front: Front,
    bucket: Bucket,
}

fn trial<F>(name: &str, dialect: Dialect, test: fn(Rig) -> F) -> Trial
where
    F: Future<Output = TestResult> + 'static,
{
    Trial::ignorable_test(format!("dialects::{name}"), move || {
        servers::outcome(Runtime::new()?.block_on(async { test(Rig::new(dialect).await?).await }))
    })
}

type Dao = ObjectLockDao<String, uuid::Uuid>;

impl Rig {
    async fn new(dialect: Dialect) -> std::io::Result<Self> {
        let front = Front::of(dialect).await?;
        let bucket = Bucket::in_dialect(dialect, front.url());
        Ok(Rig { dialect, front, bucket })
    }

    async fn dao(&self) -> Result<Arc<Dao>, lockcore::BackendError> {
        Ok(Arc::new(self.bucket.builder().own_clock().open().await?))
    }
}

fn caller(dao: &Arc<Dao>) -> Caller<Dao> {
    Caller::new(dao.clone(), Duration::from_secs(60))
}

async fn a_set_is_taken_and_freed(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await?, rig.dao().await?);
    assert_eq!(rig.front.fake(|fake| fake.names()), [""; 0], "the objects of the probes are removed");
    let held = caller(&one).take(["a", "b"]).await;
    assert_eq!(caller(&two).refused(["b", "c"]).await.len(), 1);
    caller(&one).free(&held).await;
    let next = caller(&two).take(["b", "c"]).await;
    assert!(next.locks[0].granted.fence > held.locks[1].granted.fence);
    Ok(())
}

async fn a_lease_is_renewed(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await?, rig.dao().await?);
    let holder = caller(&one);
    let held = holder.take(["a"]).await;
    for _ in 0..4 {
        rig.bucket.advance(&rig.bucket, Duration::from_secs(40)).await;
        holder.keep(&held).await;
        assert_eq!(caller(&two).refused(["a"]).await.len(), 1);
    }
    holder.free(&held).await;
    caller(&two).take(["a"]).await;
    Ok(())
}

async fn a_waiter_is_handed_over_to(rig: Rig) -> TestResult {
    let open = async || {
        Ok::<_, lockcore::BackendError>(LockingService::new(rig.bucket.builder().own_clock().open().await?))
    };
    let (one, two) = (open().await?, open().await?);
    let held = one.lock(["a", "b"]).await?;
    let waiting =
        tokio::spawn(
            async move { two.wait(Wait::up_to(servers::ANSWERS)).lock(["b"]).await?.release().await },
        );
    // Its place is in the table before the release, or it finds the lock free.
    held.release().await?;
    waiting.await??;
    Ok(())
}

async fn a_dead_holder_is_taken_over_from(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await?, rig.dao().await?);
    let dead = caller(&one);
    let held = dead.take(["a"]).await;
    rig.bucket.advance(&rig.bucket, Duration::from_secs(40)).await;
    dead.keep(&held).await;
    rig.bucket.advance(&rig.bucket, Duration::from_secs(40)).await;
    assert_eq!(caller(&two).refused(["a"]).await.len(), 1, "it was renewed");
    rig.bucket.advance(&rig.bucket, Duration::from_secs(30)).await;
    let taken = caller(&two).take_soon(["a"]).await;
    assert!(taken.locks[0].granted.fence > held.locks[0].granted.fence);
    assert_eq!(dead.renew(&held).await.lost.len(), 1);
    Ok(())
}

/// Google's store and R2 take one write a second and object: a step waits, and no call fails by it.
async fn a_limit_of_writes_is_waited_out(rig: Rig) -> TestResult {
    if !matches!(rig.dialect, Dialect::Gcs | Dialect::R2) {
        return Ok(());
    }
    rig.front.fake(|fake| fake.is_limited = true);
    let dao = rig.dao().await?;
    for _ in 0..2 {
        let one = caller(&dao);
        let held = one.take(["a"]).await;
        one.keep(&held).await;
        one.free(&held).await;
    }
    assert!(rig.front.fake(|fake| fake.throttled) > 0);
    Ok(())
}

/// Objects are listed and deleted as the client does it there.
async fn what_ended_is_collected(rig: Rig) -> TestResult {
    let (one, two) = (rig.dao().await?, rig.dao().await?);
    let holder = caller(&one);
    let held = holder.take(["a"]).await;
    rig.bucket.advance(&rig.bucket, Duration::from_secs(40)).await;
    holder.keep(&held).await;
    holder.free(&held).await;
    let sessions =
        || rig.front.fake(|fake| fake.names().iter().filter(|name| name.contains("/session/")).count());
    assert_eq!(sessions(), 1);
    rig.bucket.advance(&rig.bucket, Duration::from_secs(48 * 3600)).await;
    two.sweep(100, None).await?;
    assert_eq!(sessions(), 0);
    Ok(())
}

async fn a_bucket_that_is_missing_is_named(rig: Rig) -> TestResult {
    let builder = rig.bucket.builder().own_clock();
    let missing = match rig.dialect {
        Dialect::S3 | Dialect::R2 => builder.s3("missing"),
        Dialect::Gcs => builder.gcs("missing"),
        Dialect::Azure => builder.azure("missing"),
    };
    let error = missing.open().await.expect_err("there is no bucket");
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("missing"), "{error}");
    Ok(())
}

/// A response without the service's own id of the request, as one of a proxy, tells no time, and is named.
async fn a_proxy_without_ids_tells_no_time(rig: Rig) -> TestResult {
    rig.front.is_proxy();
    let dao = rig.dao().await?;
    let error = dao.acquire(&caller(&dao).request(["a"])).await.expect_err("nothing tells the time");
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("Date"), "{error}");
    Ok(())
}

/// A response with an `Age` was made earlier: its `Date` is of then.
async fn what_a_cache_kept_tells_no_time(rig: Rig) -> TestResult {
    rig.front.add_header("age", "7");
    let dao = rig.dao().await?;
    let error = dao.acquire(&caller(&dao).request(["a"])).await.expect_err("nothing tells the time");
    assert_eq!(error.kind(), lockcore::BackendErrorKind::Unavailable, "{error}");
    Ok(())
}

/// As one that compresses does: each step would end as if other processes wrote first.
async fn a_proxy_that_changes_tags_of_reads_is_named(rig: Rig) -> TestResult {
    rig.front.weaken_tags();
    match rig.dialect {
        // Conditions are on generations.
        Dialect::Gcs => drop(caller(&rig.dao().await?).take(["a"]).await),
        _ => {
            let error = rig.dao().await.expect_err("no version that was read can be replaced");
            assert_eq!(error.kind(), lockcore::BackendErrorKind::Misconfigured, "{error}");
            assert!(error.to_string().contains("changes entity tags"), "{error}");
        }
    }
    Ok(())
}

async fn a_request_that_arrived_in_part_is_sent_again(rig: Rig) -> TestResult {
    let dao = rig.dao().await?;
    for code in ["RequestTimeout", "IncompleteBody"] {
        rig.front.next("PUT", Fault::RefuseAs(400, code));
        let held = caller(&dao).take(["a"]).await;
        caller(&dao).free(&held).await;
    }
    assert!(rig.front.is_over());
    Ok(())
}

/// A renewal is a write, as the next one is.
async fn the_shortest_lease_fits_the_limit_of_writes(rig: Rig) -> TestResult {
    let shortest = rig.bucket.services().own_clock().open().await?.capabilities().min_lease.as_secs();
    assert_eq!(shortest, if matches!(rig.dialect, Dialect::Gcs | Dialect::R2) { 30 } else { 10 });
    Ok(())
}

/// Two stores of one process whose clocks differ are not taken for one, also where their endpoints are options of the client.
async fn two_endpoints_have_a_clock_each(rig: Rig) -> TestResult {
    let option = match rig.dialect {
        Dialect::S3 => "aws_endpoint_url",
        Dialect::Gcs => "base_url",
        Dialect::Azure => "endpoint",
        // All of an account is at one.
        Dialect::R2 => return Ok(()),
    };
    let late = Front::of(rig.dialect).await?;
    late.shift_date(-40);
    let open = async |front: &Front| rig.bucket.client().option(option, &*front.url()).open().await;
    let late = open(&late).await?;
    late.doctor().await?;
    // The first times of another clock would contradict what is known, and widen it.
    for dao in [open(&rig.front).await?, late] {
        let findings = dao.doctor().await?;
        let known =
            findings.iter().find(|finding| finding.check == "service's time").expect("it is looked at");
        let within = known.detail.split(' ').find_map(|word| word.parse::<u64>().ok()).expect("a number");
        assert!(within < 30_000, "{}", known.detail);
    }
    Ok(())
}

/// With the rights that are printed, and no others, locks are taken, kept, freed and swept, whatever the names are.
async fn the_policy_has_the_rights_that_are_needed(rig: Rig) -> TestResult {
    for (prefix, namespace) in
        [("locks", "default"), ("", "a b"), ("/x/", "x?y*z"), ("a*b", "$1"), ("${x}", "%41")]
    {
        let builder = || rig.bucket.builder().prefix(prefix).namespace(namespace).own_clock();
        let policy = serde_json::from_str(&builder().iam_policy()?)?;
        let of = format!("{prefix:?} {namespace:?}: {policy:#}");
        rig.front.fake(|fake| fake.policy = Some(Policy(policy)));
        let (one, two) = (builder().open().await.expect(&of), builder().open().await.expect(&of));
        let (one, two) = (Arc::new(one), Arc::new(two));
        let holder = caller(&one);
        let held = holder.take(["a"]).await;
        rig.bucket.advance(&rig.bucket, Duration::from_secs(40)).await;
        holder.keep(&held).await;
        holder.free(&held).await;
        rig.bucket.advance(&rig.bucket, Duration::from_secs(48 * 3600)).await;
        two.sweep(100, None).await.expect(&of);
        let names = rig.front.fake(|fake| fake.names());
        assert!(!names.iter().any(|name| name.contains("/session/")), "{names:?}");
    }
    // Another place is none of it.
    let other = rig.bucket.builder().prefix("other").own_clock().open().await;
    assert_eq!(other.expect_err("nothing allows it").kind(), lockcore::BackendErrorKind::Denied);
    Ok(())
}

/// Where the program has opened the store no response is seen. One who had it open before its clock stepped is not ended by one who
/// opens it afterwards.
async fn a_step_of_the_clock_is_followed(rig: Rig) -> TestResult {
    let open = || rig.bucket.builder().store(own(&rig.bucket.endpoint)).open();
    let before = Arc::new(open().await?);
    caller(&before).take(["first"]).await;
    rig.front.step_date(120);
    let after = Arc::new(open().await?);
    eventually("a lease is of the time that the store has now", async || {
        let one = caller(&before);
        let held = one.take(["a"]).await;
        let two = caller(&after);
        let taken = two.try_take(["a"]).await;
        if let Ok(taken) = &taken {
            two.free(taken).await;
        }
        one.release(&held).await;
        taken.is_err().then_some(())
    })
    .await;
    Ok(())
}

/// A service of its own for each test.
struct Service(Dialect);

impl Backend for Service {
    type Dao = ObjectLockDao;
    type Guard = (Front, Bucket);

    async fn build(&self) -> ((Front, Bucket), ObjectLockDao) {
        let front = Front::of(self.0).await.expect("a port is free");
        let (bucket, dao) = Bucket::in_dialect(self.0, front.url()).build().await;
        ((front, bucket), dao)
    }

    async fn reopen(&self, (_, bucket): &(Front, Bucket)) -> Option<ObjectLockDao> {
        bucket.reopen(bucket).await
    }

    async fn reopen_ahead(&self, (_, bucket): &(Front, Bucket), by: Duration) -> Option<ObjectLockDao> {
        bucket.reopen_ahead(bucket, by).await
    }

    async fn advance(&self, (_, bucket): &(Front, Bucket), by: Duration) -> bool {
        bucket.advance(bucket, by).await
    }
}
