//! Which commits wait for the disk. A server that waits for a replica that is not there shows it: there a durable commit
//! waits for ever, and all others go on.

use std::{sync::Arc, time::Duration};

use futures_util::future::try_join_all;
use lockcore::{LockDao, backend::Acquired};
use lockcore_conformance::servers::{Kind, Server, TestResult, Trial};
use lockcore_sql::{PostgresLockDao, postgres::Commit};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;

use super::{
    place::{Dao, Error, PATIENCE, Sql, granted, handed, queue, request, take},
    test,
};

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("durability::what_must_be_durable_waits_for_the_disk", what_must_be_durable_waits_for_the_disk)]
}

async fn open(server: &Server, commit: Commit) -> Result<Arc<Dao>, Error> {
    let builder = PostgresLockDao::builder().url(server.url()).commit(commit);
    Ok(Arc::new(builder.timeout(10 * PATIENCE).open().await?))
}

async fn connect(server: &Server) -> Result<Sql, Error> {
    Ok(Sql(PgConnection::connect(&server.url()).await?))
}

/// Lets every durable commit wait from now on; one does, on a connection of its own.
async fn stall(server: &Server, sql: &mut Sql) -> Result<JoinHandle<()>, Error> {
    sql.run("ALTER SYSTEM SET synchronous_standby_names = 'nobody'").await?;
    sql.run("SELECT pg_reload_conf()").await?;
    let mut other = connect(server).await?;
    // The server's processes read it one after the other.
    let probe = tokio::spawn(async move {
        while other.run("SELECT pg_logical_emit_message(true, '', '')").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    sql.until(WAITING, 1).await?;
    Ok(probe)
}

/// 2.5 of the issue and 3.8: a grant, a renewal and a release that hands over; and what only tells of it holds up no client.
async fn what_must_be_durable_waits_for_the_disk() -> TestResult {
    let server = Server::start(Kind::Postgres).await?;
    let (usual, lazy, all) = (
        open(&server, Commit::ReleaseAsync).await?,
        open(&server, Commit::Async).await?,
        open(&server, Commit::Durable).await?,
    );
    let mut sql = connect(&server).await?;
    let mut held = Vec::new();
    for ids in [&["free"][..], &["free 1", "free 2"], &["passed on"], &["passed 1", "passed 2"], &["renewed"]]
    {
        held.push(take(&usual, ids.iter().map(ToString::to_string).collect::<Vec<_>>()).await?);
    }
    let durable = take(&all, ["durable"]).await?;
    take(&all, ["not free"]).await?;
    let (waits, wakeup) = queue(&usual, ["passed on"]).await?;
    let (also_waits, also) = queue(&usual, ["passed 2"]).await?;
    let probe = stall(&server, &mut sql).await?;

    let work = async {
        // These wait for nothing: a release, a refusal, a place in the queue; and nothing does if that is wanted.
        for grant in &held[..2] {
            assert_eq!(usual.release(grant).await?.lost, []);
        }
        assert!(matches!(usual.acquire(&request(["renewed"])).await?, Acquired::Refused(_)));
        queue(&usual, ["renewed"]).await?;
        let mine = take(&lazy, ["lazy"]).await?;
        assert_eq!((lazy.renew(&mine).await?.lost, lazy.release(&mine).await?.lost), (vec![], vec![]));
        Ok::<_, Error>(())
    };
    tokio::time::timeout(PATIENCE, work).await??;

    let mut waiting = Vec::new();
    let mut number = 1;
    let dao = usual.clone();
    let mut stuck = async |work: JoinHandle<Result<(), Error>>, commits: i64, what: &str| {
        number += commits;
        waiting.push(work);
        let all_wait = sql.until(WAITING, number).await;
        all_wait.map_err(|error| Error::from(format!("{what} has to be durable: {error}")))
    };
    for (position, what) in [(2, "a hand-over"), (3, "a hand-over of one of two")] {
        let (dao, grant) = (dao.clone(), held[position].clone());
        let work = async move { lossless(&dao.release(&grant).await?.lost) };
        stuck(tokio::spawn(work), 1, what).await?;
    }
    // A notification in a commit that waits would keep every other one from being sent.
    let mut other = connect(&server).await?;
    let tell = other.run("SET synchronous_commit = off; NOTIFY anybody");
    tokio::time::timeout(PATIENCE, tell).await??;
    for ids in [&["one"][..], &["two", "three"]] {
        let (dao, asked) = (dao.clone(), request(ids.iter().map(ToString::to_string).collect::<Vec<_>>()));
        let work = async move { granted(&dao, &asked).await.map(drop) };
        stuck(tokio::spawn(work), 1, "a grant").await?;
    }
    // A grant of one id is in flight already, so these are one batch; that the last of it is refused need not be durable.
    let crowd = usual.clone();
    let work = async move {
        let asked = ["crowd 0", "crowd 1", "crowd 2", "crowd 3", "not free"].map(|id| request([id]));
        let mut answers = try_join_all(asked.iter().map(|asked| crowd.acquire(asked))).await?;
        assert!(matches!(answers.pop(), Some(Acquired::Refused(_))));
        assert!(answers.iter().all(|answer| matches!(answer, Acquired::Granted(_))), "{answers:?}");
        Ok(())
    };
    stuck(tokio::spawn(work), 1, "a batch of grants").await?;
    let renewed = held[4].clone();
    let work = async move { lossless(&dao.renew(&renewed).await?.lost) };
    stuck(tokio::spawn(work), 1, "a renewal").await?;
    let work = async move { lossless(&all.release(&durable).await?.lost) };
    stuck(tokio::spawn(work), 1, "this release").await?;

    sql.run("ALTER SYSTEM RESET synchronous_standby_names").await?;
    sql.run("SELECT pg_reload_conf()").await?;
    for work in waiting {
        tokio::time::timeout(PATIENCE, work).await???;
    }
    handed(&usual, &waits, wakeup).await?;
    handed(&usual, &also_waits, also).await?;
    probe.abort();
    Ok(())
}

fn lossless<T: std::fmt::Debug>(lost: &[T]) -> Result<(), Error> {
    if lost.is_empty() { Ok(()) } else { Err(format!("lost: {lost:?}").into()) }
}
