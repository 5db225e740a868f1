//! A slot that moves from node to node has a namespace's keys half here and half there: nothing that is held is granted
//! meanwhile, to any client, and what can be renewed is.

use std::{
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lockcore::{Claim, Grant, LockDao, backend::Acquired};
use lockcore_conformance::{
    Caller, Store,
    servers::{Cluster, Kind, Server, ServerError, TestResult},
    store::{exclusive, shared, slot},
};
use tokio::sync::Barrier;
use uuid::Uuid;

use super::{
    place::{Dao, Failure, Place},
    topology::{Raw, node_of},
};

/// How many slots are moved to move a namespace's: each costs all nodes some messages.
const FIRST_SLOTS: u16 = 200;

/// A namespace whose slot is to move from one node to another.
struct Move<'c> {
    place: Place,
    slot: u16,
    source: &'c Server,
    target: &'c Server,
    from: Raw,
    to: Raw,
}

impl<'c> Move<'c> {
    async fn prepare(cluster: &'c Cluster) -> Result<Self, Failure> {
        let (source, target) = (&cluster.nodes()[0], &cluster.nodes()[1]);
        let (from, to) = (Raw::to(&source.url()).await?, Raw::to(&target.url()).await?);
        // One of the first node's first slots.
        let (place, slot) = loop {
            let place = Place::at(format!("redis+cluster://{}", cluster.addresses()));
            let slot: u16 = from.send(&["CLUSTER", "KEYSLOT", &place.key("")]).await?;
            if slot < FIRST_SLOTS {
                break (place, slot);
            }
        };
        // What is refused while the slot moves is not asked for again for long.
        let place = place.patient_for(Duration::from_secs(1));
        Ok(Move { place, slot, source, target, from, to })
    }

    async fn begin(&self) -> Result<(), Failure> {
        let (from, to): (String, String) =
            (self.from.ask("CLUSTER MYID").await?, self.to.ask("CLUSTER MYID").await?);
        self.to.ask::<()>(&format!("CLUSTER SETSLOT {} IMPORTING {from}", self.slot)).await?;
        self.from.ask::<()>(&format!("CLUSTER SETSLOT {} MIGRATING {to}", self.slot)).await?;
        Ok(())
    }

    async fn carry(&self, key: &str) -> Result<(), Failure> {
        let address = self.target.address();
        let (host, port) = address.rsplit_once(':').expect("host:port");
        Ok(self.from.send::<()>(&["MIGRATE", host, port, key, "0", "5000"]).await?)
    }

    async fn end(&self) -> Result<(), Failure> {
        let to: String = self.to.ask("CLUSTER MYID").await?;
        for node in [&self.to, &self.from] {
            node.ask::<()>(&format!("CLUSTER SETSLOT {} NODE {to}", self.slot)).await?;
        }
        Ok(())
    }
}

/// A holder of what another context then asks for exclusively.
type Held = (Caller<Dao>, Grant<String, Uuid>);

async fn take(store: &Store<Place>, claims: impl IntoIterator<Item = Claim<String>>) -> Held {
    let caller = store.caller();
    let grant = caller.take(claims).await;
    (caller, grant)
}

/// Keys in any order, one at a time: between any two of them nothing is granted that is held. A holder can
/// renew it whenever its own keys are together, and has everything when the slot has moved.
pub(crate) async fn keys_that_move_one_by_one_grant_nothing_that_is_held() -> TestResult {
    let cluster = Cluster::start().await?;
    let moving = Move::prepare(&cluster).await?;
    let store = moving.place.store().await;
    let mut held = vec![
        take(&store, [shared("s")]).await,
        take(&store, [shared("s"), slot("k", 5)]).await,
        take(&store, [slot("k", 5)]).await,
        take(&store, [exclusive("x"), exclusive("y")]).await,
    ];
    let mut waiting = store.caller().queue([exclusive("k")]).await;
    moving.begin().await?;
    let mut keys: Vec<String> =
        moving.from.ask(&format!("CLUSTER GETKEYSINSLOT {} 1000", moving.slot)).await?;
    keys.sort_by_cached_key(|_| Uuid::new_v4());
    for (number, key) in keys.iter().enumerate() {
        moving.carry(key).await?;
        // At once: each is tried until it is given up.
        join_all(["s", "k", "x"].map(async |id| {
            let granted = store.dao().acquire(&store.caller().request([id])).await;
            let granted = matches!(granted, Ok(Acquired::Granted(_)));
            assert!(!granted, "{id} was granted after {:?} had moved, of {keys:?}", &keys[..=number]);
        }))
        .await;
    }
    // All there, though the nodes do not know yet.
    for (caller, grant) in &held {
        caller.keep(grant).await;
    }
    moving.end().await?;
    for (caller, grant) in held.drain(..) {
        caller.keep(&grant).await;
        caller.free(&grant).await;
    }
    let turn = waiting.granted().await;
    store.dao().release(&turn).await?;
    store.becomes_free(&["s", "k", "x", "y"]).await;
    Ok(())
}

/// As an administrator does it, with a source that was restarted: its keys are then in another order.
pub(crate) async fn a_reshard_under_load_grants_nothing_that_is_held() -> TestResult {
    const IDS: usize = 2000;
    const ATTACKERS: usize = 16;
    let cluster = Cluster::start().await?;
    let moving = Move::prepare(&cluster).await?;
    let store = moving.place.store().await;
    let ids: Vec<String> = (0..IDS).map(|number| format!("id {number}")).collect();
    let mut held = Vec::new();
    for ids in ids.chunks(100) {
        let claims = ids.iter().enumerate().map(|(number, id)| match number % 2 {
            0 => shared(id),
            _ => slot(id, 3),
        });
        held.push(take(&store, claims).await);
    }
    moving.from.ask::<()>("DEBUG RELOAD").await?;
    let stop = Arc::new(AtomicBool::new(false));
    let begun = Arc::new(Barrier::new(ATTACKERS + 1));
    let attack = |first: usize| {
        let (ids, stop, place) = (ids.clone(), stop.clone(), moving.place.clone());
        let begun = begun.clone();
        tokio::spawn(async move {
            let (store, mut wrong) = (place.store().await, Vec::new());
            begun.wait().await;
            for id in ids.iter().cycle().skip(first) {
                if stop.load(Relaxed) {
                    break;
                }
                let request = store.caller().request([id]);
                let answer = store.dao().acquire(&request).await;
                if matches!(answer, Ok(Acquired::Granted(_))) {
                    wrong.push(id.clone());
                }
            }
            wrong
        })
    };
    let attackers: Vec<_> = (0..ATTACKERS).map(|number| attack(number * IDS / ATTACKERS)).collect();
    // From here on each has a request under way at all times.
    begun.wait().await;
    let (from, to): (String, String) =
        (moving.from.ask("CLUSTER MYID").await?, moving.to.ask("CLUSTER MYID").await?);
    reshard(moving.source, &from, &to).await?;
    let moved_to = node_of(&cluster, &moving.place.key("")).await?.address();
    assert_eq!(moved_to, moving.target.address());
    stop.store(true, Relaxed);
    for attacker in attackers {
        let wrong = attacker.await?;
        assert!(wrong.is_empty(), "granted though held: {wrong:?}");
    }
    for (caller, grant) in held {
        caller.keep(&grant).await;
        caller.free(&grant).await;
    }
    Ok(())
}

/// Has `redis-cli` move the first slots of one node to another.
async fn reshard(source: &Server, from: &str, to: &str) -> TestResult {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/servers/bin/redis-cli");
    let program = if kept.exists() { kept } else { "redis-cli".into() };
    let mut command = tokio::process::Command::new(program);
    command.args(["--cluster", "reshard", &source.address(), "--cluster-from", from, "--cluster-to", to]);
    command.args(["--cluster-slots", &FIRST_SLOTS.to_string(), "--cluster-yes", "--cluster-pipeline", "1"]);
    let output = command.stdin(Stdio::null()).output().await.map_err(|error| {
        let reason = format!("redis-cli cannot be run: {error}");
        ServerError::missing(Kind::Redis.name(), reason)
    })?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}
