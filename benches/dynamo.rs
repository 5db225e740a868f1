//! DynamoDB: the CPU time of a pair - take and release - beside the bare calls of the SDK that any lock would need and
//! beside the crate `dynamodb-lease`, which takes the ids of a set one by one, and the time that it takes; for sets of 1, 10
//! and 100. The engine is another process, so that only ours is counted. Requests and units are counted by
//! `backend-dynamo/tests/costs.rs`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region, retry::RetryConfig},
    types::{AttributeValue, ReturnValuesOnConditionCheckFailure::AllOld, TransactWriteItem, Update},
};
use lockcore::{AcquireRequest, Acquired, AttemptId, ClaimSet, FreshContext, Grant, LockDao, Mode};
use lockcore_conformance::servers::{Kind, Server};
use lockcore_dynamo::DynamoLockDao;
use rustix::time::{ClockId, clock_gettime};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TABLE: &str = "bench";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let server = match Server::start(Kind::DynamoDb).await {
        Ok(server) => server,
        Err(error) => {
            println!("not measured: {error}");
            return Ok(());
        }
    };
    let endpoint = server.url().trim_end_matches('/').to_owned();
    let builder = DynamoLockDao::<String>::builder().endpoint(&endpoint).region("eu-central-1").table(TABLE);
    let dao = builder.credentials("test", "test", None).open().await?;
    dao.migrate().await?;
    let bare = bare(&endpoint);
    let lease = lease(&endpoint, bare.clone()).await?;
    println!("CPU time of this process for take and release, us (in brackets the time it took)");
    for count in [1, 10, 100] {
        let ids: Vec<String> = (0..count).map(|number| format!("{count}/{number}")).collect();
        let [mut ours, mut theirs, mut peers] = [Spent::default(); 3];
        // In turn, so that a machine whose speed drifts changes all alike.
        for round in 0..22 {
            let pairs = if count == 100 { 5 } else { 40 };
            let our = pair_of_ours(&dao, &ids, pairs).await?;
            let their = pair_of_bare(&bare, &ids, pairs).await?;
            let of_peer = if count == 1 { pairs } else { 1 };
            let peer = pair_of_lease(&lease, &ids, of_peer).await?;
            if round >= 2 {
                ours.add(our, pairs);
                theirs.add(their, pairs);
                peers.add(peer, of_peer);
            }
        }
        let ratio = |other: &Spent| ours.each().as_secs_f64() / other.each().as_secs_f64();
        println!(
            "{count:4} ids: ours {ours}, bare SDK {theirs}, ratio {:.2}; dynamodb-lease {peers}, ratio {:.2}",
            ratio(&theirs),
            ratio(&peers)
        );
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Spent {
    cpu: Duration,
    wall: Duration,
    pairs: u32,
}

impl Spent {
    fn add(&mut self, more: (Duration, Duration), pairs: u32) {
        self.cpu += more.0;
        self.wall += more.1;
        self.pairs += pairs;
    }

    fn each(&self) -> Duration {
        self.cpu / self.pairs
    }
}

impl std::fmt::Display for Spent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.each().as_micros(), (self.wall / self.pairs).as_micros())
    }
}

fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

async fn pair_of_ours(dao: &DynamoLockDao, ids: &[String], pairs: u32) -> Outcome<(Duration, Duration)> {
    let (before, start) = (cpu(), Instant::now());
    for _ in 0..pairs {
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
        let released =
            dao.release(&Grant::new(request.context, request.claims, granted, request.lease)).await?;
        if !released.lost.is_empty() {
            return Err("lost".into());
        }
    }
    Ok((cpu() - before, start.elapsed()))
}

async fn pair_of_bare(client: &Client, ids: &[String], pairs: u32) -> Outcome<(Duration, Duration)> {
    let (before, start) = (cpu(), Instant::now());
    for _ in 0..pairs {
        let context = Uuid::fresh().to_string();
        write(client, ids, "SET #c=:c,#t=:t,#e=:e", "attribute_not_exists(#c) OR #e<:t", &context).await?;
        write(client, ids, "SET #e=:t REMOVE #c,#t", "#c=:c", &context).await?;
    }
    Ok((cpu() - before, start.elapsed()))
}

/// The least that a lock has to write, by the SDK alone.
async fn write(client: &Client, ids: &[String], change: &str, condition: &str, context: &str) -> Outcome<()> {
    let names = || {
        let names = [("#c", "contextId"), ("#t", "created"), ("#e", "expires")];
        names.map(|(name, attribute)| (name.to_owned(), attribute.to_owned())).into()
    };
    let values = || {
        let mut values = HashMap::from([
            (":c".to_owned(), AttributeValue::S(context.to_owned())),
            (":t".to_owned(), AttributeValue::N("1795000000".to_owned())),
            (":e".to_owned(), AttributeValue::N("1795000030".to_owned())),
        ]);
        values.retain(|name, _| change.contains(name.as_str()) || condition.contains(name.as_str()));
        values
    };
    let key = |id: &String| AttributeValue::S(format!("bare/{id}"));
    if let [id] = ids {
        let request = client.update_item().table_name(TABLE).key("id", key(id)).update_expression(change);
        let request = request.condition_expression(condition).set_expression_attribute_names(Some(names()));
        let request = request.set_expression_attribute_values(Some(values()));
        request.return_values_on_condition_check_failure(AllOld).send().await?;
        return Ok(());
    }
    let mut request = client.transact_write_items();
    for id in ids {
        let update = Update::builder().table_name(TABLE).key("id", key(id)).update_expression(change);
        let update = update.condition_expression(condition).set_expression_attribute_names(Some(names()));
        let update = update.set_expression_attribute_values(Some(values()));
        let update = update.return_values_on_condition_check_failure(AllOld).build()?;
        request = request.transact_items(TransactWriteItem::builder().update(update).build());
    }
    request.send().await?;
    Ok(())
}

async fn pair_of_lease(
    client: &dynamodb_lease::Client,
    ids: &[String],
    pairs: u32,
) -> Outcome<(Duration, Duration)> {
    let (before, start) = (cpu(), Instant::now());
    for _ in 0..pairs {
        let mut leases = Vec::with_capacity(ids.len());
        for id in ids {
            leases.push(client.try_acquire(id).await?.ok_or("refused")?);
        }
        for lease in leases {
            lease.release().await?;
        }
    }
    Ok((cpu() - before, start.elapsed()))
}

/// The peer, with the table that it wants.
async fn lease(endpoint: &str, client: Client) -> Outcome<dynamodb_lease::Client> {
    const LEASES: &str = "bench-leases";
    let builder = DynamoLockDao::<String>::builder().endpoint(endpoint).region("eu-central-1").table(LEASES);
    let builder = builder.id_attribute("key").expires_attribute("lease_expiry");
    builder.credentials("test", "test", None).open().await?.migrate().await?;
    Ok(dynamodb_lease::Client::builder().table_name(LEASES).build_and_check_db(client).await?)
}

fn bare(endpoint: &str) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .retry_config(RetryConfig::disabled())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "bench"))
        .endpoint_url(endpoint);
    Client::from_conf(config.build())
}
