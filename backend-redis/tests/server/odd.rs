//! Servers that are set up so that locks are not safe, or that refuse: each is a clear error, by its kind.

use std::time::{Duration, Instant};

use lockcore::{BackendErrorKind, LockDao, Severity, Wait};
use lockcore_conformance::{
    eventually,
    judge::in_time,
    refusing::{
        a_store_that_refuses_for_a_while_ends_no_wait, a_store_that_refuses_for_good_ends_a_sleeping_wait,
    },
    servers::{Cluster, TestResult},
    store::id,
};

use super::{
    place::Place,
    topology::{Raw, old_server, replica_of, server},
};

pub(crate) async fn an_evicting_server_is_refused() -> TestResult {
    for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-ttl", "volatile-lru"] {
        let server = server(&format!("--maxmemory 64mb --maxmemory-policy {policy}")).await?;
        let error = Place::at(server.url()).open().await.expect_err("it may evict locks");
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{policy}: {error}");
        assert!(error.to_string().contains(policy), "{error}");
    }
    Ok(())
}

pub(crate) async fn the_doctor_sees_a_policy_that_was_changed_later() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    raw.ask::<()>("CONFIG SET maxmemory 64mb").await?;
    raw.ask::<()>("CONFIG SET maxmemory-policy allkeys-lru").await?;
    let findings = store.dao().doctor().await?;
    let bad: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    assert!(bad.iter().any(|finding| finding.detail.contains("allkeys-lru")), "{findings:?}");
    Ok(())
}

/// The node that may evict is found and named.
pub(crate) async fn every_node_of_a_cluster_is_looked_at() -> TestResult {
    let cluster = Cluster::start().await?;
    let place = Place::at(format!("redis+cluster://{}", cluster.addresses()));
    let store = place.store().await;
    for node in cluster.nodes() {
        let raw = Raw::to(&node.url()).await?;
        raw.ask::<()>("CONFIG SET maxmemory 64mb").await?;
        raw.ask::<()>("CONFIG SET maxmemory-policy allkeys-lru").await?;
        let findings = store.dao().doctor().await?;
        let bad: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
        let [bad] = bad[..] else { panic!("{findings:?}") };
        for other in cluster.nodes() {
            let is_it = other.address() == node.address();
            assert_eq!(bad.detail.contains(&other.address()), is_it, "{bad:?}");
        }
        let error = place.open().await.expect_err("a node may evict locks");
        assert_eq!(error.kind(), BackendErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains(&node.address()), "{error}");
        raw.ask::<()>("CONFIG SET maxmemory-policy noeviction").await?;
        let healthy = store.dao().doctor().await?;
        let policies: Vec<_> = healthy.iter().filter(|finding| finding.check == "eviction").collect();
        assert_eq!(policies.len(), 1, "what all nodes have in common is said once: {healthy:?}");
    }
    Ok(())
}

pub(crate) async fn the_doctor_sees_whether_messages_arrive() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let raw = place.raw().await?;
    raw.ask::<()>("ACL SETUSER unnotified on >pass ~* resetchannels +@all").await?;
    let unnotified = place.through(server.url().replace("redis://", "redis://unnotified:pass@"));
    for (place, expected) in [(&place, Severity::Ok), (&unnotified, Severity::Error)] {
        let store = place.store().await;
        for waited in [false, true] {
            let findings = store.dao().doctor().await?;
            let waking = findings.iter().find(|finding| finding.check == "waking").expect("it is checked");
            assert_eq!(waking.severity, expected, "waited: {waited}: {waking:?}");
            if expected == Severity::Ok {
                assert!(waking.detail.starts_with("listening for"), "{waking:?}");
                let held = store.caller().take(["a"]).await;
                store.caller().queue(["a"]).await.leave().await;
                store.caller().free(&held).await;
            }
        }
    }
    Ok(())
}

/// What the book warns of is a warning: a restart without an append-only file, a failover to a replica.
pub(crate) async fn the_doctor_warns_of_what_loses_locks() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let severity = async |check: &str| {
        let findings = store.dao().doctor().await.ok()?;
        findings.into_iter().find(|finding| finding.check == check).map(|found| found.severity)
    };
    raw.ask::<()>("CONFIG SET appendonly no").await?;
    assert_eq!(severity("persistence").await, Some(Severity::Warning));
    raw.ask::<()>("CONFIG SET appendonly yes").await?;
    assert_eq!(severity("persistence").await, Some(Severity::Ok));
    assert_eq!(severity("replicas").await, Some(Severity::Ok));
    let _replica = replica_of(&server, "").await?;
    eventually("the replica is seen", || async {
        (severity("replicas").await == Some(Severity::Warning)).then_some(())
    })
    .await;
    let findings = store.dao().doctor().await?;
    let detail = |check: &str| {
        let found = findings.iter().find(|finding| finding.check == check);
        found.map(|found| found.detail.clone()).unwrap_or_default()
    };
    assert!(!detail("clock").contains("-0"), "{}", detail("clock"));
    assert!(
        detail("waking").starts_with("listening for") && !detail("waking").contains("ns"),
        "{findings:?}"
    );
    Ok(())
}

pub(crate) async fn a_replica_is_refused() -> TestResult {
    let master = server("").await?;
    let replica = replica_of(&master, "").await?;
    let error = Place::at(replica.url()).open().await.expect_err("nothing can be locked there");
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("replica"), "{error}");
    Ok(())
}

pub(crate) async fn a_master_that_becomes_a_replica_refuses_clearly() -> TestResult {
    let (other, server) = (server("").await?, server("").await?);
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let held = store.caller().take(["a"]).await;
    raw.ask::<()>(&format!("REPLICAOF {}", other.address().replace(':', " "))).await?;
    let error = store.dao().acquire(&store.caller().request(["b"])).await.expect_err("it is a replica now");
    assert!(!error.in_doubt(), "{error:?}");
    assert_eq!(error.kind(), BackendErrorKind::Unavailable, "{error:?}");
    store.dao().renew(&held).await.expect_err("it is a replica now");
    store.dao().release(&held).await.expect_err("it is a replica now");
    raw.ask::<()>("REPLICAOF NO ONE").await?;
    // What it was told meanwhile it has from its master: nothing.
    eventually("it works again", || async { store.dao().acquire(&store.caller().request(["b"])).await.ok() })
        .await;
    Ok(())
}

/// What refuses the commands of a script has its code in another place before 7.0.
pub(crate) async fn what_a_server_refuses_inside_a_script_is_understood() -> TestResult {
    use BackendErrorKind::{Busy, Unavailable};
    for server in [server("").await?, old_server("").await?] {
        let place = Place::at(server.url());
        let (store, raw) = (place.store().await, place.raw().await?);
        // What a snapshot would replace.
        let folder: Vec<String> = raw.ask("CONFIG GET dir").await?;
        std::fs::create_dir_all(format!("{}/dump.rdb/in the way", folder[1]))?;
        for (refuse, allow, kind) in [
            ("maxmemory 1", "maxmemory 0", Busy),
            ("min-replicas-to-write 1", "min-replicas-to-write 0", Unavailable),
            ("save 3600 1", "stop-writes-on-bgsave-error no", Unavailable),
        ] {
            let (setting, value) = refuse.split_once(' ').expect("two words");
            raw.send::<()>(&["CONFIG", "SET", setting, value]).await?;
            if setting == "save" {
                raw.ask::<String>("BGSAVE").await?;
                eventually("the snapshot failed", || async {
                    let info: String = raw.ask("INFO persistence").await.ok()?;
                    info.contains("rdb_last_bgsave_status:err").then_some(())
                })
                .await;
            }
            for ids in [&["a"][..], &["a", "b"]] {
                let request = store.caller().request(ids.iter().copied());
                let error = store.dao().acquire(&request).await.expect_err(refuse);
                assert_eq!((error.kind(), error.in_doubt()), (kind, false), "{refuse}: {error:?}");
            }
            raw.ask::<()>(&format!("CONFIG SET {allow}")).await?;
            let us = store.caller();
            us.free(&us.take(["a", "b"]).await).await;
        }
    }
    Ok(())
}

/// A connection to a master that became a replica is given up: by its name another server may be the master. What waits
/// meanwhile goes on waiting.
pub(crate) async fn a_demoted_master_is_left_and_a_wait_outlasts_it() -> TestResult {
    for server in [server("").await?, old_server("").await?] {
        // Of the same release: a replica takes no data of a newer one.
        let place = Place::at(server.url());
        let (store, locks, raw) = (place.store().await, place.locks().await?, place.raw().await?);
        for stale in ["yes", "no"] {
            store.is_free(&["a"]).await;
            raw.ask::<()>(&format!("CONFIG SET replica-serve-stale-data {stale}")).await?;
            // There is no other server: it keeps what it has.
            raw.ask::<()>("REPLICAOF 127.0.0.1 1").await?;
            let connections = raw.info("stats", "total_connections_received").await?;
            for _ in 0..3 {
                let request = store.caller().request(["a"]);
                let error = store.dao().acquire(&request).await.expect_err("it is a replica now");
                assert_eq!(
                    (error.kind(), error.in_doubt()),
                    (BackendErrorKind::Unavailable, false),
                    "{error:?}"
                );
            }
            let since = raw.info("stats", "total_connections_received").await? - connections;
            assert!(since >= 2, "{since} new connections for three requests");
            let waiting = locks.wait(Wait::up_to(Duration::from_secs(60))).with_locks(["a"], async || ());
            let promoted = async {
                // Until the wait was refused at least once.
                eventually("it was asked", || async {
                    let since = raw.info("stats", "total_connections_received").await.ok()? - connections;
                    (since >= 4).then_some(())
                })
                .await;
                raw.ask::<()>("REPLICAOF NO ONE").await
            };
            let (waited, promoted) = tokio::join!(waiting, promoted);
            promoted?;
            waited?;
        }
    }
    Ok(())
}

/// A fail-over, in which the server is a replica for a while, and a snapshot that failed, after which it takes no writes.
pub(crate) async fn what_waits_outlasts_a_server_that_refuses_writes() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let raw = place.raw().await?;
    a_store_that_refuses_for_a_while_ends_no_wait(place.open().await?, async |refuse| {
        Ok(raw.ask(if refuse { "REPLICAOF 127.0.0.1 1" } else { "REPLICAOF NO ONE" }).await?)
    })
    .await?;
    // What a snapshot would replace.
    let folder: Vec<String> = raw.ask("CONFIG GET dir").await?;
    let in_the_way = format!("{}/dump.rdb", folder[1]);
    raw.send::<()>(&["CONFIG", "SET", "save", "3600 1"]).await?;
    a_store_that_refuses_for_a_while_ends_no_wait(place.open().await?, async |refuse| {
        let status = if refuse {
            std::fs::create_dir_all(format!("{in_the_way}/a folder"))?;
            "rdb_last_bgsave_status:err"
        } else {
            std::fs::remove_dir_all(&in_the_way)?;
            "rdb_last_bgsave_status:ok"
        };
        raw.ask::<String>("BGSAVE").await?;
        eventually("the snapshot ended", || async {
            let info: String = raw.ask("INFO persistence").await.ok()?;
            info.contains(status).then_some(())
        })
        .await;
        Ok(())
    })
    .await
}

pub(crate) async fn what_is_refused_for_good_ends_a_sleeping_wait() -> TestResult {
    let server = server("").await?;
    let raw = Place::at(server.url()).raw().await?;
    raw.ask::<()>("ACL SETUSER app on >pass ~* &* +@all").await?;
    let place = Place::at(server.url().replace("redis://", "redis://app:pass@"));
    a_store_that_refuses_for_good_ends_a_sleeping_wait(place.open().await?, async || {
        Ok(raw.ask("ACL SETUSER app -@scripting").await?)
    })
    .await
}

pub(crate) async fn something_else_under_our_key_is_reported() -> TestResult {
    something_else(Place::shared().await?).await?;
    let server = old_server("").await?;
    something_else(Place::at(server.url())).await
}

async fn something_else(place: Place) -> TestResult {
    let (store, raw) = (place.store().await, place.raw().await?);
    let us = store.caller();
    raw.send::<()>(&["LPUSH", &place.key("a"), "no lock"]).await?;
    for ids in [&["a"][..], &["a", "b"], &["0", "a", "b"]] {
        let error = store.dao().acquire(&us.request(ids.iter().copied())).await.expect_err("it is a list");
        assert_eq!(error.kind(), BackendErrorKind::Corrupt, "{error:?}");
        assert!(
            error.to_string().contains(&place.key("a")) || error.to_string().contains("\"a\""),
            "{error}"
        );
        assert!(!error.is_retryable(), "{error:?}");
    }
    assert!(store.is_free(&["0", "b"]).await, "nothing of a set is left");
    assert_eq!(raw.send::<i64>(&["LLEN", &place.key("a")]).await?, 1, "nor is anything of others touched");
    raw.send::<()>(&["DEL", &place.key("a")]).await?;
    us.take(["a", "b"]).await;
    Ok(())
}

/// Another's script keeps the server from answering: busy, and settled afterwards.
pub(crate) async fn a_slow_script_of_others_is_reported_as_busy() -> TestResult {
    let server = server("--busy-reply-threshold 100").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, place.raw().await?);
    let held = store.caller().take(["a"]).await;
    let slow = place.raw().await?;
    let spinning = tokio::spawn(async move { slow.send::<()>(&["EVAL", "while true do end", "0"]).await });
    eventually("it is busy", || async { raw.ask::<String>("PING").await.err() }).await;
    let error = store.dao().acquire(&store.caller().request(["b"])).await.expect_err("it is busy");
    assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Busy, false), "{error:?}");
    assert!(error.is_retryable());
    store.dao().renew(&held).await.expect_err("it is busy");
    raw.ask::<()>("SCRIPT KILL").await?;
    spinning.await?.expect_err("it was killed");
    assert_eq!(store.dao().renew(&held).await?.lost, []);
    assert!(store.is_free(&["b"]).await);
    Ok(())
}

/// A server that is stopped: given up after the timeout, settled when it goes on.
pub(crate) async fn a_stopped_server_is_a_timeout_in_doubt() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url()).patient_for(Duration::from_millis(400));
    let store = place.store().await;
    let us = store.caller();
    let request = us.request(["a"]);
    server.pause().await?;
    let begun = Instant::now();
    let error = store.dao().acquire(&request).await.expect_err("it does not answer");
    in_time(begun.elapsed(), Duration::from_secs(5));
    assert_eq!((error.kind(), error.in_doubt()), (BackendErrorKind::Timeout, true), "{error:?}");
    server.resume().await?;
    eventually("withdrawn", || async {
        store.dao().withdraw(&request, lockcore::backend::Withdraw::Undo).await.ok()
    })
    .await;
    us.refused_as_withdrawn(&request).await;
    assert!(store.is_free(&["a"]).await);
    Ok(())
}

/// What an administrator does to connections: ours come back, waiters included.
pub(crate) async fn killed_connections_come_back() -> TestResult {
    let server = server("").await?;
    let place = Place::at(server.url());
    let (store, raw) = (place.store().await, Raw::to(&server.url()).await?);
    let [us, them] = store.callers();
    let held = us.take(["a"]).await;
    let mut waiting = them.queue(["a"]).await;
    raw.ask::<()>("CLIENT KILL TYPE normal SKIPME yes").await?;
    raw.ask::<()>("CLIENT KILL TYPE pubsub").await?;
    eventually("released", || async { store.dao().release(&held).await.ok() }).await;
    let begun = Instant::now();
    let turn = waiting.granted().await;
    in_time(begun.elapsed(), Duration::from_secs(5));
    them.free(&turn).await;
    assert!(store.dao().inspect(&id("a")).await?.holders.is_empty());
    Ok(())
}
