//! Several cells at once: transactions of many keys, reads of one moment, removals at a version.

use std::sync::Arc;

use lockcore::BackendErrorKind;
use lockcore_cell::{Cell, Change, Found, Written};
use lockcore_conformance::{
    eventually,
    servers::{self, Kind, Server, TestResult, Trial},
};
use lockcore_etcd::Keys;
use serde_json::json;
use tokio::{join, sync::Notify};

use crate::{
    faults::{RANGE, Rig, TXN, trial},
    front::Fault,
    raw::{number, post},
};

pub(crate) fn trials() -> Vec<Trial> {
    macro_rules! trials {
        ($($name:ident)*) => { vec![$(trial(concat!("several::", stringify!($name)), $name)),*] };
    }
    let mut all = trials! {
        all_are_replaced_or_none
        of_two_sets_that_overlap_one_is_replaced
        sets_of_each_size_are_replaced_and_read
        what_is_too_much_is_refused
        each_is_read_unless_it_is_known
        what_is_read_in_chunks_is_of_one_moment
        without_room_is_read_in_another_way
        only_the_version_that_is_named_is_removed
        a_response_that_is_lost_leaves_a_set_in_doubt
    };
    // On a member of its own: others would read again, too.
    let name = "several::what_is_compacted_meanwhile_is_read_again";
    all.push(servers::trial(Kind::Etcd, name, || async {
        let server = Server::start(Kind::Etcd).await?;
        what_is_compacted_meanwhile_is_read_again(Rig::before(server.address()).await?).await
    }));
    all
}

fn change(name: impl Into<String>, at: Option<u64>, content: &str) -> Change<u64> {
    Change { name: name.into(), at, content: content.to_owned().into() }
}

/// Replaces all, which has to be done; returns the one version that they have.
async fn done(keys: &Keys, changes: &[Change<u64>]) -> u64 {
    match keys.replace_all(changes).await {
        Ok(Written::Done(versions)) => {
            assert!(
                versions.len() == changes.len() && versions.iter().all(|version| *version == versions[0])
            );
            versions[0]
        }
        failed => panic!("the conditions hold: {failed:?}"),
    }
}

/// Returns the contents of cells, with their versions.
async fn contents(keys: &Keys, names: &[&str]) -> Vec<Option<(u64, String)>> {
    let cells: Vec<_> = names.iter().map(|name| ((*name).to_owned(), None)).collect();
    let found = keys.read_all(&cells).await.expect("the member answers");
    found.into_iter().map(content).collect()
}

fn content(found: Found<u64>) -> Option<(u64, String)> {
    match found {
        Found::Absent => None,
        Found::Changed(version, content) => {
            Some((version, String::from_utf8(content.to_vec()).expect("a text")))
        }
        Found::Unchanged => panic!("nothing is known"),
    }
}

fn is(version: u64, content: &str) -> Option<(u64, String)> {
    Some((version, content.to_owned()))
}

async fn all_are_replaced_or_none(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    let first = done(&keys, &[change("id/a", None, "a1"), change("id/b", None, "b1")]).await;
    // Whichever of them is not as it is said: at another version, there, or not there.
    for refused in [
        [change("id/a", Some(first), "a2"), change("id/b", Some(first - 1), "b2")],
        [change("id/a", Some(first - 1), "a2"), change("id/b", Some(first), "b2")],
        [change("id/a", Some(first), "a2"), change("id/b", None, "b2")],
        [change("id/c", Some(first), "c2"), change("id/b", Some(first), "b2")],
        [change("id/c", None, "c2"), change("id/b", None, "b2")],
    ] {
        assert_eq!(keys.replace_all(&refused).await?, Written::Refused, "{refused:?}");
        let all = contents(&keys, &["id/a", "id/b", "id/c"]).await;
        assert_eq!(all, [is(first, "a1"), is(first, "b1"), None], "{refused:?}");
    }
    let second = done(&keys, &[change("id/b", Some(first), "b2"), change("id/c", None, "c2")]).await;
    let all = contents(&keys, &["id/a", "id/b", "id/c"]).await;
    assert_eq!(all, [is(first, "a1"), is(second, "b2"), is(second, "c2")]);
    // The other order is the same step.
    done(&keys, &[change("id/c", Some(second), "c3"), change("id/b", Some(second), "b3")]).await;
    Ok(())
}

async fn of_two_sets_that_overlap_one_is_replaced(rig: Rig) -> TestResult {
    let place = rig.first();
    let (one, two) = (place.builder().keys().await?, rig.beside(&place).keys().await?);
    let (mut a, mut b, mut c) = (None, None, None);
    for _ in 0..50 {
        let (first, second) = (
            [change("id/a", a, "1"), change("id/b", b, "1")],
            [change("id/b", b, "2"), change("id/c", c, "2")],
        );
        let (first, second) = join!(one.replace_all(&first), two.replace_all(&second));
        match (first?, second?) {
            (Written::Done(versions), Written::Refused) => (a, b) = (Some(versions[0]), Some(versions[1])),
            (Written::Refused, Written::Done(versions)) => (b, c) = (Some(versions[0]), Some(versions[1])),
            both => panic!("{both:?}"),
        }
        let all = contents(&one, &["id/a", "id/b", "id/c"]).await;
        let versions: Vec<Option<u64>> = all.into_iter().map(|cell| cell.map(|cell| cell.0)).collect();
        assert_eq!(versions, [a, b, c]);
    }
    Ok(())
}

async fn sets_of_each_size_are_replaced_and_read(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    for size in [1, 2, keys.at_once()] {
        let name = |number: usize| format!("id/{size:x}{number:x}");
        let all = |at, content| (0..size).map(|number| change(name(number), at, content)).collect::<Vec<_>>();
        let first = done(&keys, &all(None, "1")).await;
        assert_eq!(keys.replace_all(&all(None, "2")).await?, Written::Refused);
        let second = done(&keys, &all(Some(first), "3")).await;
        let cells = |known| (0..size).map(|number| (name(number), known)).collect::<Vec<_>>();
        for known in [None, Some(first), Some(second)] {
            let expected = match known == Some(second) {
                true => Found::Unchanged,
                false => Found::Changed(second, "3".into()),
            };
            let found = keys.read_all(&cells(known)).await?;
            assert!(found.len() == size && found.iter().all(|found| *found == expected), "{found:?}");
        }
    }
    Ok(())
}

/// What the members allow is not known before they refuse it.
async fn what_is_too_much_is_refused(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    let many: Vec<_> =
        (0..=keys.at_once()).map(|number| change(format!("id/{number:x}"), None, "1")).collect();
    let half = "x".repeat(1 << 20);
    let large = [change("id/a", None, &half), change("id/b", None, &half)];
    for (changes, named) in [(&many[..], "--max-txn-ops"), (&large, "--max-request-bytes")] {
        let failed = keys.replace_all(changes).await.expect_err(named);
        assert!(failed.kind() == BackendErrorKind::Other && !failed.in_doubt(), "{failed}");
        assert!(failed.to_string().contains(named), "{failed}");
    }
    assert_eq!(contents(&keys, &["id/a", "id/b"]).await, [None, None]);
    Ok(())
}

async fn each_is_read_unless_it_is_known(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    let first = done(&keys, &[change("id/a", None, "a1"), change("id/b", None, "b1")]).await;
    let second = done(&keys, &[change("id/b", Some(first), "b2")]).await;
    let cells = [("id/a", Some(first)), ("id/b", Some(first)), ("id/c", None), ("id/c", Some(first))];
    let cells = cells.map(|(name, known)| (name.to_owned(), known));
    let found = keys.read_all(&cells).await?;
    let of_b = Found::Changed(second, "b2".into());
    assert_eq!(found, [Found::Unchanged, of_b, Found::Absent, Found::Absent]);
    assert_eq!(keys.read_all(&[]).await?, []);
    Ok(())
}

/// Reads 300 cells, by three requests, and replaces the first and the last of them between the first request and the second.
async fn read_meanwhile(
    rig: &Rig,
    meanwhile: impl AsyncFnOnce(&Keys),
) -> Result<Vec<Option<(u64, String)>>, Box<dyn std::error::Error + Send + Sync>> {
    let place = rig.first();
    let (keys, other) = (place.builder().keys().await?, rig.beside(&place).keys().await?);
    let cells: Vec<_> = (0..300).map(|number| (format!("id/{number:x}"), None)).collect();
    let (mut versions, mut later) = (Vec::new(), Vec::new());
    for chunk in cells.chunks(100) {
        let changes: Vec<_> = chunk.iter().map(|(name, at)| change(name, *at, "1")).collect();
        versions.push(done(&other, &changes).await);
    }
    for (cell, version) in [(&cells[0], versions[0]), (&cells[299], versions[2])] {
        later.push(change(&cell.0, Some(version), "2"));
    }
    let gate = Arc::new(Notify::new());
    // The first one reads, so that it does not matter how often.
    rig.one.next(TXN, Fault::Twice);
    rig.one.next(TXN, Fault::Hold(gate.clone()));
    let write = async {
        eventually("the second request is held back", async || rig.one.is_over().then_some(())).await;
        done(&other, &later).await;
        meanwhile(&other).await;
        gate.notify_one();
    };
    let (found, ()) = join!(keys.read_all(&cells), write);
    Ok(found?.into_iter().map(content).collect())
}

async fn what_is_read_in_chunks_is_of_one_moment(rig: Rig) -> TestResult {
    let found = read_meanwhile(&rig, async |_| ()).await?;
    assert_eq!(found.len(), 300);
    for cell in &found {
        assert_eq!(cell.as_ref().expect("all are there").1, "1");
    }
    assert_eq!(rig.one.requests_of(TXN), 3);
    Ok(())
}

async fn what_is_compacted_meanwhile_is_read_again(rig: Rig) -> TestResult {
    let member = rig.member.clone();
    let compact = async |_: &Keys| {
        let status = post(&member, "/v3/maintenance/status", json!({})).await;
        let revision = number(&status["header"]["revision"]).to_string();
        post(&member, "/v3/kv/compaction", json!({ "revision": revision })).await;
    };
    let found = read_meanwhile(&rig, compact).await?;
    let with: Vec<_> =
        (0..300).filter(|&cell| found[cell].as_ref().expect("all are there").1 == "2").collect();
    assert_eq!(with, [0, 299]);
    assert_eq!(rig.one.requests_of(TXN), 5);
    Ok(())
}

/// A member without room may refuse a transaction that writes nothing. Single ranges are of one moment, too.
async fn without_room_is_read_in_another_way(rig: Rig) -> TestResult {
    let place = rig.first();
    let (keys, other) = (place.builder().keys().await?, rig.beside(&place).keys().await?);
    let first = done(&other, &[change("id/a", None, "1"), change("id/b", None, "1")]).await;
    let gate = Arc::new(Notify::new());
    rig.one.next(TXN, Fault::Refuse(403, 8, "etcdserver: mvcc: database space exceeded"));
    rig.one.next(RANGE, Fault::Twice);
    rig.one.next(RANGE, Fault::Hold(gate.clone()));
    let write = async {
        eventually("the second is held back", async || rig.one.is_over().then_some(())).await;
        done(&other, &[change("id/a", Some(first), "2"), change("id/b", Some(first), "2")]).await;
        gate.notify_one();
    };
    let (found, ()) = join!(contents(&keys, &["id/a", "id/b"]), write);
    assert_eq!(found, [is(first, "1"), is(first, "1")]);
    Ok(())
}

async fn only_the_version_that_is_named_is_removed(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    let first = done(&keys, &[change("id/a", None, "1"), change("id/b", None, "1")]).await;
    let second = done(&keys, &[change("id/a", Some(first), "2")]).await;
    for other in [first, second - 1, second + 1] {
        keys.remove_at("id/a", &other).await?;
        assert_eq!(contents(&keys, &["id/a"]).await, [is(second, "2")]);
    }
    keys.remove_at("id/a", &second).await?;
    keys.remove_at("id/a", &second).await?;
    assert_eq!(contents(&keys, &["id/a", "id/b"]).await, [None, is(first, "1")]);
    // It begins again, above all that it had.
    assert!(done(&keys, &[change("id/a", None, "3")]).await > second);
    Ok(())
}

async fn a_response_that_is_lost_leaves_a_set_in_doubt(rig: Rig) -> TestResult {
    let keys = rig.first().builder().keys().await?;
    let both = |at, content| [change("id/a", at, content), change("id/b", at, content)];
    let mut at = None;
    for (fault, content) in [
        (Fault::LoseResponse, "1"),
        (Fault::DoAndRefuse(503, 14, "etcdserver: request timed out"), "2"),
        (Fault::DoAndRefuse(403, 8, "etcdserver: mvcc: database space exceeded"), "3"),
    ] {
        rig.one.next(TXN, fault);
        let failed =
            keys.replace_all(&both(at, content)).await.expect_err("the answer does not say that it is done");
        assert!(failed.in_doubt() && failed.is_retryable(), "{failed}");
        assert_eq!(keys.replace_all(&both(at, "again")).await?, Written::Refused);
        let found = contents(&keys, &["id/a", "id/b"]).await;
        at = found[0].as_ref().map(|cell| cell.0);
        assert_eq!(found, [is(at.unwrap_or(0), content), is(at.unwrap_or(0), content)]);
    }
    // Of one that is sent twice the second answer is a refusal.
    rig.one.next(TXN, Fault::Twice);
    assert_eq!(keys.replace_all(&both(at, "4")).await?, Written::Refused);
    assert_eq!(contents(&keys, &["id/a"]).await[0].as_ref().map(|cell| &*cell.1), Some("4"));
    // What is lost of a removal may have been done, too.
    let at = contents(&keys, &["id/a"]).await[0].as_ref().map_or(0, |cell| cell.0);
    rig.one.next(TXN, Fault::LoseResponse);
    assert!(keys.remove_at("id/a", &at).await.expect_err("the answer is lost").in_doubt());
    assert_eq!(contents(&keys, &["id/a"]).await, [None]);
    Ok(())
}
