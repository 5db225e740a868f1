//! A bucket on an emulator of S3, over the loopback: pairs of sets of 1, 10 and 100 ids that were never locked before, beside
//! two bare conditional writes of the same bytes, and beside one object for each lock, made on condition that there is none and
//! deleted again, as programs write it by hand; then how many pairs 32 tasks get done, there and at the latencies of S3.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use lockcore::LockingService;
use lockcore_benches::{Case, report};
use lockcore_conformance::servers::Bucket;
use lockcore_object::ObjectLockDao;
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion,
    aws::{AmazonS3, AmazonS3Builder},
    memory::InMemory,
    path::Path,
    throttle::{ThrottleConfig, ThrottledStore},
};
use uuid::Uuid;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
type Locks = LockingService<String, Uuid, ObjectLockDao<String>>;

const BUCKET: &str = "bench";
const ROUNDS: u32 = 300;
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
    let server = Bucket::own(BUCKET).await?;
    let locks = open(&server).await?;
    let bare = bare(&server)?;
    let mut cases = Vec::new();
    for count in [1, 10, 100] {
        cases.push(pair(&locks, &bare, count).await?);
    }
    report(&cases);
    throughput(&locks, &bare).await?;
    far_away().await
}

async fn open(server: &Bucket) -> Outcome<Locks> {
    let dao = ObjectLockDao::<String>::builder()
        .s3(BUCKET)
        .endpoint(server.endpoint())
        .namespace("bench")
        .option("region", "us-east-1")
        .option("access_key_id", "bench")
        .option("secret_access_key", "bench");
    Ok(LockingService::new(dao.open().await?))
}

fn bare(server: &Bucket) -> Outcome<Arc<AmazonS3>> {
    let store = AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(BUCKET)
        .with_access_key_id("bench")
        .with_secret_access_key("bench");
    Ok(Arc::new(store.build()?))
}

fn fresh(count: usize) -> Vec<String> {
    (0..count).map(|_| format!("objects/{:016x}", fastrand::u64(..))).collect()
}

async fn pair(locks: &Locks, bare: &AmazonS3, count: usize) -> Outcome<Case> {
    let table = Path::from("lockcore/bench/table");
    let mut held = Bytes::new();
    let read = async || bare.get(&table).await?.bytes().await;
    locks.with_locks(&fresh(count), async || read().await.map(|content| held = content)).await?;
    let free = read().await?;
    let object = Path::from("bare");
    let mut version = put(bare, &object, &free, PutMode::Overwrite).await?;
    let name = format!("{count} ids, alone ({} bytes held, {} free)", held.len(), free.len());
    let mut case = Case::new(name, &["lockcore", "two bare conditional writes", "an object for each lock"]);
    for round in 0..ROUNDS {
        let ids = fresh(count);
        case.once(0, locks.with_locks(&ids, async || Ok::<_, Infallible>(()))).await?;
        version = case
            .once(1, async {
                let held = put(bare, &object, &held, PutMode::Update(version)).await?;
                put(bare, &object, &free, PutMode::Update(held)).await
            })
            .await?;
        // A hundred objects, one by one, take long.
        if count < 100 || round % 10 == 0 {
            case.once(2, by_hand(bare, &ids)).await?;
        }
    }
    Ok(case)
}

async fn put(
    bare: &AmazonS3,
    object: &Path,
    content: &Bytes,
    mode: PutMode,
) -> object_store::Result<UpdateVersion> {
    let done = bare.put_opts(object, PutPayload::from(content.clone()), mode.into()).await?;
    Ok(done.into())
}

/// Without lease, fence and queue: what a program does that has nothing else.
async fn by_hand(bare: &AmazonS3, ids: &[String]) -> object_store::Result<()> {
    for id in ids {
        put(bare, &Path::from(format!("locks/{id}")), &Bytes::from_static(b"me"), PutMode::Create).await?;
    }
    for id in ids {
        bare.delete(&Path::from(format!("locks/{id}"))).await?;
    }
    Ok(())
}

/// Pairs a second of one id each: of one task, of 32 tasks, and of 32 tasks by hand.
async fn throughput(locks: &Locks, bare: &Arc<AmazonS3>) -> Outcome<()> {
    let [mut alone, mut together, mut by_hand_together] = [0.0, 0.0, 0.0];
    for _ in 0..TURNS {
        let (ours, theirs) = (locks.clone(), bare.clone());
        let ours = move || {
            let locks = ours.clone();
            async move { Ok(locks.with_locks(&fresh(1), async || Ok::<_, Infallible>(())).await?) }
        };
        let by_hand = move || {
            let bare = theirs.clone();
            async move { Ok(by_hand(&bare, &fresh(1)).await?) }
        };
        alone += rate(1, ours.clone()).await?;
        together += rate(TASKS, ours).await?;
        by_hand_together += rate(TASKS, by_hand).await?;
    }
    let turns = f64::from(TURNS);
    println!(
        "pairs a second: 1 task {:.0}; {TASKS} tasks {:.0}, {:.1} times as many; {TASKS} tasks by hand {:.0}",
        alone / turns,
        together / turns,
        together / alone,
        by_hand_together / turns
    );
    Ok(())
}

/// The same with a store that takes as long as S3: 60 ms for a write, 25 ms for a read.
async fn far_away() -> Outcome<()> {
    let waits = ThrottleConfig {
        wait_put_per_call: Duration::from_millis(60),
        wait_get_per_call: Duration::from_millis(25),
        ..ThrottleConfig::default()
    };
    let store: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(InMemory::new(), waits));
    let locks = LockingService::new(ObjectLockDao::<String>::builder().store(store).open().await?);
    let pair = move || {
        let locks = locks.clone();
        async move { Ok(locks.with_locks(&fresh(1), async || Ok::<_, Infallible>(())).await?) }
    };
    let (alone, together) = (rate(1, pair.clone()).await?, rate(TASKS, pair).await?);
    println!(
        "pairs a second at the latencies of S3: 1 task {alone:.1}; {TASKS} tasks {together:.0}, {:.1} times as many",
        together / alone
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
