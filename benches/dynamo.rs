//! DynamoDB: the CPU time of a pair - take and release - of sets of 1, 10 and 100, beside the SDK's bare calls: the very
//! writes that ours makes, and the least that any lock would write; and beside the crate `dynamodb-lease`, which takes the
//! ids of a set one by one. Once with an engine, once with a server that answers nothing. Only the thread that calls is
//! counted. Requests and units are counted by `backend-dynamo/tests/costs.rs`.

#[path = "dynamo/bare.rs"]
mod bare;
#[path = "dynamo/stub.rs"]
mod stub;

use std::{
    fmt,
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::Client;
use lockcore::{
    ClaimSet, FreshContext, Grant, LockDao, Mode,
    backend::{AcquireRequest, Acquired, AttemptId},
};
use lockcore_conformance::servers::{Kind, Server};
use lockcore_dynamo::{DynamoBuilder, DynamoLockDao};
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TABLE: &str = "bench";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    println!("CPU time of take and release, us (in brackets the time that passed)");
    let endpoint = stub::start()?;
    let dao = builder(&endpoint, TABLE).open().await?;
    measure("a server that answers nothing", &dao, &bare::client(&endpoint), None).await?;
    match Server::start(Kind::DynamoDb).await {
        Ok(server) => {
            let endpoint = server.url().trim_end_matches('/').to_owned();
            let dao = builder(&endpoint, TABLE).open().await?;
            dao.migrate().await?;
            let bare = bare::client(&endpoint);
            let lease = lease(&endpoint, bare.clone()).await?;
            measure("an engine", &dao, &bare, Some(&lease)).await
        }
        Err(error) => {
            println!("with an engine: not measured: {error}");
            Ok(())
        }
    }
}

async fn measure(
    name: &str,
    dao: &DynamoLockDao,
    bare: &Client,
    lease: Option<&dynamodb_lease::Client>,
) -> Outcome<()> {
    println!("with {name}:");
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("{count}/{number}")).collect();
        let [mut ours, mut same, mut least, mut peers] = [Spent::default(); 4];
        // In turn, so that a machine whose speed drifts changes all alike.
        for round in 0..42 {
            let pairs = if count == 100 { 5 } else { 40 };
            let spent = [
                time(pairs, async || pair_of_ours(dao, &ids).await).await?,
                time(pairs, async || bare::same(bare, &ids).await).await?,
                time(pairs, async || bare::least(bare, &ids).await).await?,
            ];
            let peer = match lease {
                Some(lease) if round % 2 == 0 => {
                    let pairs = if count == 1 { pairs } else { 1 };
                    time(pairs, async || pair_of_lease(lease, &ids).await).await?
                }
                _ => Spent::default(),
            };
            if round >= 2 {
                ours += spent[0];
                same += spent[1];
                least += spent[2];
                peers += peer;
            }
        }
        let beside = |other: &Spent| format!("{other} ratio {:.2}", ours.each() / other.each());
        print!(
            "{count:5} ids: ours {ours}, the same by the SDK {}, the least {}",
            beside(&same),
            beside(&least)
        );
        match lease {
            Some(_) => println!(", dynamodb-lease {}", beside(&peers)),
            None => println!(),
        }
    }
    Ok(())
}

/// What some pairs took.
#[derive(Clone, Copy, Default)]
struct Spent {
    cpu: Duration,
    wall: Duration,
    pairs: u32,
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, more: Self) {
        self.cpu += more.cpu;
        self.wall += more.wall;
        self.pairs += more.pairs;
    }
}

impl Spent {
    /// In seconds.
    fn each(&self) -> f64 {
        self.cpu.as_secs_f64() / f64::from(self.pairs)
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0} ({})", self.each() * 1e6, (self.wall / self.pairs).as_micros())
    }
}

async fn time(pairs: u32, pair: impl AsyncFn() -> Outcome<()>) -> Outcome<Spent> {
    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let (before, start) = (cpu(), Instant::now());
    for _ in 0..pairs {
        pair().await?;
    }
    Ok(Spent { cpu: cpu() - before, wall: start.elapsed(), pairs })
}

async fn pair_of_ours(dao: &DynamoLockDao, ids: &[String]) -> Outcome<()> {
    let request = AcquireRequest {
        context: Uuid::fresh(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new(ids, Mode::Exclusive)?,
        lease: Some(Duration::from_secs(30)),
        owner: "bench".into(),
        queue: false,
        nested: false,
        detached: false,
    };
    let Acquired::Granted(granted) = dao.acquire(&request).await? else { return Err("refused".into()) };
    let grant = Grant::new(request.context, request.claims, granted, request.lease);
    match dao.release(&grant).await?.lost.is_empty() {
        true => Ok(()),
        false => Err("lost".into()),
    }
}

async fn pair_of_lease(client: &dynamodb_lease::Client, ids: &[String]) -> Outcome<()> {
    let mut leases = Vec::with_capacity(ids.len());
    for id in ids {
        leases.push(client.try_acquire(id).await?.ok_or("refused")?);
    }
    for lease in leases {
        lease.release().await?;
    }
    Ok(())
}

/// The peer, with the table that it wants.
async fn lease(endpoint: &str, client: Client) -> Outcome<dynamodb_lease::Client> {
    const LEASES: &str = "bench-leases";
    let builder = builder(endpoint, LEASES).id_attribute("key").expires_attribute("lease_expiry");
    builder.open().await?.migrate().await?;
    Ok(dynamodb_lease::Client::builder().table_name(LEASES).build_and_check_db(client).await?)
}

fn builder(endpoint: &str, table: &str) -> DynamoBuilder<String, Uuid> {
    let builder = DynamoLockDao::builder().endpoint(endpoint).region("eu-central-1").table(table);
    builder.credentials("test", "test", None)
}
