//! A member of etcd over the loopback, which syncs nothing to its disk: pairs of sets of 1, 10 and 100 ids that were never locked before,
//! beside two bare compare-and-sets of the same bytes over the same client of HTTP, and beside etcd's own lock of its `concurrency`
//! package, which the gateway offers, one for each id; then how many pairs tasks get done.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use lockcore::LockingService;
use lockcore_benches::{Case, report};
use lockcore_conformance::servers::{Kind, Server, Way};
use lockcore_etcd::EtcdLockDao;
use serde_json::{Value, json};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Locks = LockingService<String, Uuid, EtcdLockDao<String>>;

const ROUNDS: u32 = 1_000;
const TASKS: usize = 32;
/// How often each of the rates is measured, and for how long.
const TURNS: u32 = 5;
const TURN: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Outcome<()> {
    // As a task: `block_on` itself would be on a thread of its own.
    tokio::spawn(run()).await?
}

async fn run() -> Outcome<()> {
    let server = Server::start_by(Kind::Etcd, Way::Process).await?;
    let locks = LockingService::new(EtcdLockDao::<String>::builder().url(server.url()).open().await?);
    let bare = Arc::new(Bare::at(&server.address()).await?);
    let mut cases = Vec::new();
    for count in [1, 10, 100] {
        cases.push(pair(&locks, &bare, count).await?);
    }
    report(&cases);
    throughput(&locks, &bare).await
}

/// The gateway without anything of ours.
struct Bare {
    http: reqwest::Client,
    url: String,
    /// Of etcd's own locks, which is granted once, as a session of `concurrency` does.
    lease: Value,
}

impl Bare {
    async fn at(address: &str) -> Outcome<Self> {
        let http = reqwest::Client::builder().no_proxy().http1_only().build()?;
        let mut bare = Bare { http, url: format!("http://{address}"), lease: Value::Null };
        bare.lease = bare.post("/v3/lease/grant", json!({ "TTL": "3600" })).await?["ID"].take();
        Ok(bare)
    }

    async fn post(&self, path: &str, body: Value) -> Outcome<Value> {
        let request = self.http.post(format!("{}{path}", self.url)).body(body.to_string());
        Ok(serde_json::from_slice(&request.send().await?.error_for_status()?.bytes().await?)?)
    }

    /// Returns the version of a key, and its value.
    async fn read(&self, key: &str) -> Outcome<(String, String)> {
        let range = self.post("/v3/kv/range", json!({ "key": BASE64_STANDARD.encode(key) })).await?;
        let text = |name: &str| range["kvs"][0][name].as_str().unwrap_or("0").to_owned();
        Ok((text("mod_revision"), text("value")))
    }

    /// Replaces a key if it is of a version; returns the next one.
    async fn replace(&self, key: &str, at: &str, value: &str) -> Outcome<String> {
        let key = BASE64_STANDARD.encode(key);
        let txn = json!({
            "compare": [{ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": at }],
            "success": [{ "request_put": { "key": key, "value": value } }],
        });
        let txn = self.post("/v3/kv/txn", txn).await?;
        match (txn["succeeded"].as_bool(), txn["header"]["revision"].as_str()) {
            (Some(true), Some(revision)) => Ok(revision.to_owned()),
            _ => Err("another one wrote".into()),
        }
    }

    /// Locks each id by etcd's own lock, and frees it.
    async fn own_locks(&self, ids: &[String]) -> Outcome<()> {
        let mut held = Vec::new();
        for id in ids {
            let lock = json!({ "name": BASE64_STANDARD.encode(format!("own/{id}")), "lease": self.lease });
            held.push(self.post("/v3/lock/lock", lock).await?["key"].take());
        }
        for key in held {
            self.post("/v3/lock/unlock", json!({ "key": key })).await?;
        }
        Ok(())
    }
}

fn fresh(count: usize) -> Vec<String> {
    (0..count).map(|_| format!("objects/{:016x}", fastrand::u64(..))).collect()
}

async fn pair(locks: &Locks, bare: &Bare, count: usize) -> Outcome<Case> {
    const TABLE: &str = "lockcore/default/table";
    let mut held = String::new();
    let read = async || Outcome::Ok(bare.read(TABLE).await?.1);
    locks.with_locks(&fresh(count), async || held = read().await.expect("the member answers")).await?;
    let free = read().await?;
    let mut version = bare.replace("bare", &bare.read("bare").await?.0, &free).await?;
    let name = format!("{count} ids, alone ({} bytes held, {} free)", held.len() * 3 / 4, free.len() * 3 / 4);
    let mut case = Case::new(name, &["lockcore", "two bare compare-and-sets", "etcd's own lock for each id"]);
    for round in 0..ROUNDS {
        let ids = fresh(count);
        case.once(0, locks.with_locks(&ids, async || Ok::<_, Infallible>(()))).await?;
        version = case
            .once(1, async {
                let held = bare.replace("bare", &version, &held).await?;
                bare.replace("bare", &held, &free).await
            })
            .await?;
        // A hundred locks, one by one, take long.
        if count < 100 || round % 10 == 0 {
            case.once(2, bare.own_locks(&ids)).await?;
        }
    }
    Ok(case)
}

/// Pairs a second of one id each: of one task, of 32 tasks, and of 32 tasks by etcd's own locks.
async fn throughput(locks: &Locks, bare: &Arc<Bare>) -> Outcome<()> {
    let [mut alone, mut together, mut own] = [0.0, 0.0, 0.0];
    for _ in 0..TURNS {
        let (ours, theirs) = (locks.clone(), bare.clone());
        let ours = move || {
            let locks = ours.clone();
            async move { Ok(locks.with_locks(&fresh(1), async || Ok::<_, Infallible>(())).await?) }
        };
        let by_etcd = move || {
            let bare = theirs.clone();
            async move { bare.own_locks(&fresh(1)).await }
        };
        alone += rate(1, ours.clone()).await?;
        together += rate(TASKS, ours).await?;
        own += rate(TASKS, by_etcd).await?;
    }
    let turns = f64::from(TURNS);
    println!(
        "pairs a second: 1 task {:.0}; {TASKS} tasks {:.0}, {:.1} times as many; {TASKS} tasks by etcd's own locks {:.0}",
        alone / turns,
        together / turns,
        together / alone,
        own / turns
    );
    Ok(())
}

async fn rate<F>(tasks: usize, pair: impl Fn() -> F + Send + Clone + 'static) -> Outcome<f64>
where
    F: Future<Output = Outcome<()>> + Send + 'static,
{
    let since = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let pair = pair.clone();
            tokio::spawn(async move {
                let mut done = 0_u32;
                while since.elapsed() < TURN {
                    pair().await?;
                    done += 1;
                }
                Outcome::Ok(done)
            })
        })
        .collect();
    let mut all = 0;
    for task in tasks {
        all += task.await??;
    }
    Ok(f64::from(all) / since.elapsed().as_secs_f64())
}
