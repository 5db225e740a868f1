//! Another client of the same table - boto3, with the conditional put of the system that this one succeeds - excludes us
//! and is excluded by us, on the same ids.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use lockcore::{Claim, Conflict, ConflictReason, LockDao, LossReason, StoredContext};
use lockcore_conformance::{
    Caller, Store, eventually,
    servers::{Kind, TestResult, Trial, shared, trial},
};
use lockcore_dynamo::DynamoLockDao;
use uuid::Uuid;

use crate::{
    engine::{
        front::rig,
        python::{python, run_python},
    },
    table::Table,
};

/// `lock ID CONTEXT SECONDS` and `unlock ID`, as the other client does both, and `update ID CONTEXT SECONDS`, which takes an
/// id over in place whatever stands there; prints what came of it.
const CLIENT: &str = r##"
import sys, time, boto3
endpoint, table, names, what, key = sys.argv[1:6]
id_, context, created, expires = names.split(",")
client = boto3.client("dynamodb", endpoint_url=endpoint, region_name="eu-central-1",
                      aws_access_key_id="test", aws_secret_access_key="test")
if what == "lock":
    holder, seconds = sys.argv[6], int(sys.argv[7])
    now = int(time.time())
    try:
        client.put_item(
            TableName=table,
            Item={id_: {"S": key}, context: {"S": holder}, created: {"N": str(now)}, expires: {"N": str(now + seconds)}},
            ConditionExpression="attribute_not_exists(#i) OR #e < :now OR #c = :me",
            ExpressionAttributeNames={"#i": id_, "#e": expires, "#c": context},
            ExpressionAttributeValues={":now": {"N": str(now)}, ":me": {"S": holder}})
        print("granted")
    except client.exceptions.ConditionalCheckFailedException:
        print("refused")
elif what == "update":
    holder, seconds = sys.argv[6], int(sys.argv[7])
    now = int(time.time())
    client.update_item(
        TableName=table, Key={id_: {"S": key}}, UpdateExpression="SET #c = :me, #t = :now, #e = :end",
        ExpressionAttributeNames={"#c": context, "#t": created, "#e": expires},
        ExpressionAttributeValues={":now": {"N": str(now)}, ":me": {"S": holder}, ":end": {"N": str(now + seconds)}})
    print("updated")
elif what == "unlock":
    client.delete_item(TableName=table, Key={id_: {"S": key}})
    print("unlocked")
elif what == "index":
    found = client.query(TableName=table, IndexName="context-ids-index", KeyConditionExpression="#c = :c",
                         ExpressionAttributeNames={"#c": context}, ExpressionAttributeValues={":c": {"S": key}})
    print(",".join(sorted(item[id_]["S"] for item in found["Items"])))
else:
    item = client.get_item(TableName=table, Key={id_: {"S": key}}, ConsistentRead=True).get("Item", {})
    print(" ".join(f"{name}={list(item[name].values())[0]}" for name in (context, created, expires) if name in item))
"##;

macro_rules! trials {
    ($($name:ident)*) => { vec![$(trial(Kind::DynamoDb, concat!("interop::", stringify!($name)), || $name()),)*] };
}

pub(crate) fn tests() -> Vec<Trial> {
    trials! {
        it_is_excluded_while_we_hold
        we_are_excluded_while_it_holds
        its_expired_lock_is_taken_over
        our_expired_lock_is_taken_over_by_it
        its_unlock_of_our_lock_is_reported
        its_update_of_our_item_is_neither_freed_nor_prolonged
        what_we_remember_of_a_free_id_blocks_no_request
        it_finds_our_locks_by_context
        other_names_work_too
        fences_outlast_its_unlock_and_its_lock
        strict_fences_outlast_whatever_it_does
        its_lock_can_be_broken_and_released_by_context
        a_freeze_outlasts_its_lease
        a_stack_of_our_template_has_all_that_is_wanted
        the_policy_allows_what_programs_ask_for
    }
}

/// A table of its own, without a namespace, and the two clients of it.
struct Rig {
    endpoint: String,
    table: String,
    names: &'static str,
    store: Store<Table>,
    dao: Arc<DynamoLockDao>,
}

impl Rig {
    async fn new() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Rig::with("id,contextId,created,expires", false).await
    }

    async fn with(
        names: &'static str,
        strict: bool,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let server = shared(Kind::DynamoDb).await?;
        python()?;
        let table = format!("seed-{}", Uuid::new_v4());
        let base = Table::at(server.url());
        let [id, context, created, expires] = names.split(',').collect::<Vec<_>>()[..] else {
            unreachable!("four names")
        };
        let builder = base
            .builder()
            .table(&table)
            .id_attribute(id)
            .context_attribute(context)
            .created_attribute(created)
            .expires_attribute(expires)
            .context_index("context-ids-index")
            .strict_fence(strict);
        let dao = Arc::new(builder.open().await?);
        dao.migrate().await?;
        let endpoint = server.url().trim_end_matches('/').to_owned();
        Ok(Rig { endpoint, table, names, store: Store::new(Arc::new(base)).await, dao })
    }

    fn caller(&self) -> Caller<DynamoLockDao> {
        self.store.caller().through(&self.dao)
    }

    /// What the other client says.
    async fn other(&self, arguments: &[&str]) -> String {
        let arguments =
            [&self.endpoint, &self.table, self.names].into_iter().chain(arguments.iter().copied());
        let said = run_python(CLIENT, arguments.map(str::to_owned)).await;
        said.expect("there was a Python at the beginning")
    }
}

fn holder(conflicts: &[Conflict<String, Uuid>]) -> &lockcore::Holder<Uuid> {
    match &conflicts[0].reason {
        ConflictReason::Held { holders, .. } => &holders[0],
        other => panic!("not held: {other:?}"),
    }
}

async fn it_is_excluded_while_we_hold() -> TestResult {
    let rig = Rig::new().await?;
    let caller = rig.caller();
    for claims in [
        vec![lockcore::Claim::exclusive("a")],
        vec![lockcore::Claim::shared("a")],
        vec![lockcore::Claim::slots("a", 3)],
    ] {
        let grant = caller.take(claims).await;
        assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "refused");
        caller.free(&grant).await;
        assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "granted");
        assert_eq!(rig.other(&["unlock", "a"]).await, "unlocked");
    }
    rig.dao.freeze(&lockcore::Target::Id("a".to_owned()), true).await?;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "refused");
    rig.dao.freeze(&lockcore::Target::Id("a".to_owned()), false).await?;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "granted");
    Ok(())
}

async fn we_are_excluded_while_it_holds() -> TestResult {
    let rig = Rig::new().await?;
    assert_eq!(rig.other(&["lock", "b", "theirs", "60"]).await, "granted");
    let caller = rig.caller();
    for ids in [vec!["b"], vec!["a", "b", "c"]] {
        let conflicts = caller.refused(ids).await;
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        let told = holder(&conflicts);
        assert_eq!((&told.context, told.fence), (&StoredContext::Foreign("theirs".to_owned()), 0));
        assert!(told.remaining.is_some_and(|left| left <= Duration::from_secs(63)), "{told:?}");
    }
    assert_eq!(rig.other(&["lock", "b", "theirs", "60"]).await, "granted", "its own again");
    rig.other(&["unlock", "b"]).await;
    caller.take(["a", "b", "c"]).await;
    Ok(())
}

async fn its_expired_lock_is_taken_over() -> TestResult {
    let rig = Rig::new().await?;
    assert_eq!(rig.other(&["lock", "a", "theirs", "10"]).await, "granted");
    let caller = rig.caller();
    caller.refused(["a"]).await;
    caller.take_soon(["a"]).await;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "refused");
    Ok(())
}

async fn our_expired_lock_is_taken_over_by_it() -> TestResult {
    let rig = Rig::new().await?;
    let caller = rig.caller().with_lease(Duration::from_secs(20));
    let grant = caller.take(["a"]).await;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "refused");
    eventually("our lease ends", || async {
        (rig.other(&["lock", "a", "theirs", "60"]).await == "granted").then_some(())
    })
    .await;
    let lost = caller.renew(&grant).await.lost;
    assert_eq!((lost.len(), lost[0].reason), (1, LossReason::Vanished));
    assert_eq!(caller.release(&grant).await.lost.len(), 1, "its lock is not freed");
    assert_eq!(rig.other(&["lock", "a", "somebody else", "60"]).await, "refused");
    Ok(())
}

/// A client that changes items in place leaves our attributes where they are; one with a fast clock takes over early.
async fn its_update_of_our_item_is_neither_freed_nor_prolonged() -> TestResult {
    for names in ["id,contextId,created,expires", "name,holder,since,ttl"] {
        let rig = Rig::with(names, false).await?;
        let [alone, one, two] = [rig.caller(), rig.caller(), rig.caller()];
        let held = alone.take(["a"]).await;
        let shared = || [Claim::shared("b"), Claim::slots("c", 3)];
        let together = [one.take(shared()).await, two.take(shared()).await];
        let mut seen = Vec::new();
        for id in ["a", "b", "c"] {
            assert_eq!(rig.other(&["update", id, "theirs", "3600"]).await, "updated");
            seen.push(rig.other(&["read", id]).await);
        }
        for (caller, grant) in [(&alone, &held), (&one, &together[0]), (&two, &together[1])] {
            for lost in [caller.renew(grant).await.lost, caller.release(grant).await.lost] {
                assert_eq!(lost.len(), grant.locks.len(), "{lost:?}");
                assert!(lost.iter().all(|lost| lost.reason == LossReason::Vanished), "{lost:?}");
            }
        }
        for (id, seen) in ["a", "b", "c"].iter().zip(seen) {
            assert_eq!(rig.other(&["read", id]).await, seen, "{id} is as the other client left it");
            alone.refused([*id]).await;
        }
    }
    Ok(())
}

async fn its_unlock_of_our_lock_is_reported() -> TestResult {
    let rig = Rig::new().await?;
    let caller = rig.caller();
    let grant = caller.take(["a", "b"]).await;
    rig.other(&["unlock", "a"]).await;
    let lost = caller.renew(&grant).await.lost;
    assert_eq!((lost.len(), lost[0].reason), (1, LossReason::Vanished), "{lost:?}");
    assert_eq!(lost[0].target, lockcore::Target::Id("a".to_owned()));
    assert_eq!(caller.release(&grant).await.lost.len(), 1);
    Ok(())
}

/// An attempt that was withdrawn is remembered where TTL does not collect it, and where others see a free id.
async fn what_we_remember_of_a_free_id_blocks_no_request() -> TestResult {
    let rig = Rig::new().await?;
    let caller = rig.caller();
    let request = caller.request(["a"]);
    assert_eq!(
        caller.withdraw(&request, lockcore::backend::Withdraw::Undo).await,
        lockcore::backend::Withdrawn::Left
    );
    assert_eq!(rig.other(&["show", "a"]).await, "expires=0", "free, and not to be collected");
    let next = rig.caller();
    let grant = next.take(["a"]).await;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "refused");
    next.free(&grant).await;
    assert_eq!(rig.other(&["show", "a"]).await, "expires=0");
    caller.refused_as_withdrawn(&request).await;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "granted");
    next.refused(["a"]).await;
    Ok(())
}

async fn it_finds_our_locks_by_context() -> TestResult {
    let rig = Rig::new().await?;
    let caller = rig.caller();
    let grant = caller.take(["a", "b"]).await;
    let context = caller.context.to_string();
    let found = eventually("the index is there", || async {
        let found = rig.other(&["index", &context]).await;
        (!found.is_empty()).then_some(found)
    })
    .await;
    assert_eq!(found, "a,b");
    let shown = rig.other(&["show", "a"]).await;
    assert!(shown.contains(&format!("contextId={context}")) && shown.contains("expires=1"), "{shown}");
    assert!(!shown.contains('.'), "whole seconds: {shown}");
    caller.free(&grant).await;
    let shown = rig.other(&["show", "a"]).await;
    // The engine does so once a minute.
    assert!(shown.is_empty() || shown.starts_with("expires=1"), "free, and to be collected: {shown}");
    Ok(())
}

async fn other_names_work_too() -> TestResult {
    let rig = Rig::with("name,owner,status,ttl", false).await?;
    let caller = rig.caller();
    let grant = caller.take(["a", "b"]).await;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "refused");
    caller.keep(&grant).await;
    caller.free(&grant).await;
    assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "granted");
    caller.refused(["a", "b"]).await;
    Ok(())
}

async fn fences_outlast_its_unlock_and_its_lock() -> TestResult {
    let rig = Rig::new().await?;
    let mut last = 0;
    for round in 0..3 {
        let caller = rig.caller();
        let grant = caller.take(["a"]).await;
        let fence = grant.locks[0].granted.fence;
        assert!(fence > last, "round {round}: {fence} after {last}");
        last = fence;
        caller.free(&grant).await;
        assert_eq!(rig.other(&["lock", "a", "theirs", "60"]).await, "granted");
        rig.other(&["unlock", "a"]).await;
    }
    Ok(())
}

async fn strict_fences_outlast_whatever_it_does() -> TestResult {
    let rig = Rig::with("id,contextId,created,expires", true).await?;
    assert_eq!(rig.dao.capabilities().max_ids, 50);
    let ids: Vec<String> = (0..50).map(|number| format!("{number:02}")).collect();
    let caller = rig.caller();
    let grant = caller.take(&ids).await;
    caller.keep(&grant).await;
    caller.free(&grant).await;
    // What the id's own item knew is gone, and the fence item knows a number from the future.
    let far = grant.locks[0].granted.fence + 3_600_000_000;
    let key = "lockcore-fence##00";
    let put = "import sys, boto3\nboto3.client('dynamodb', endpoint_url=sys.argv[1], region_name='eu-central-1', aws_access_key_id='test', aws_secret_access_key='test').put_item(TableName=sys.argv[2], Item={'id': {'S': sys.argv[3]}, 'fence': {'N': sys.argv[4]}})";
    run_python(put, [rig.endpoint.clone(), rig.table.clone(), key.to_owned(), far.to_string()]).await?;
    rig.other(&["lock", "00", "theirs", "60"]).await;
    rig.other(&["unlock", "00"]).await;
    let again = caller.take(["00"]).await;
    assert!(again.locks[0].granted.fence > far, "{again:?} after {far}");
    rig.caller().refused(["00"]).await;
    Ok(())
}

async fn its_lock_can_be_broken_and_released_by_context() -> TestResult {
    let rig = Rig::new().await?;
    let target = lockcore::Target::Id("a".to_owned());
    rig.other(&["lock", "a", "theirs", "60"]).await;
    let shown = rig.dao.inspect(&target).await?;
    assert_eq!(shown.holders[0].context, StoredContext::Foreign("theirs".to_owned()));
    let broken = rig.dao.break_lock(&target, 0, lockcore::BreakMode::Now, "an admin").await?;
    assert_eq!(broken, lockcore::Broken::Freed);
    let context = Uuid::new_v4();
    assert_eq!(rig.other(&["lock", "a", &context.to_string(), "60"]).await, "granted");
    assert_eq!(rig.dao.release_context(&context).await?, [target]);
    rig.caller().take(["a"]).await;
    Ok(())
}

/// A frozen id stays so when the lease that another client has of it ends, though that is what others see of it.
///
/// TTL may collect the item then, as the crate's documentation says; the engine's does so once a minute.
async fn a_freeze_outlasts_its_lease() -> TestResult {
    for _ in 0..3 {
        if is_frozen_after_its_lease().await? {
            return Ok(());
        }
    }
    Err("the item was collected each time".into())
}

/// Returns whether the freeze was still there, or `false` if the item was collected.
async fn is_frozen_after_its_lease() -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let rig = Rig::new().await?;
    let target = lockcore::Target::Id("a".to_owned());
    assert_eq!(rig.other(&["lock", "a", "theirs", "5"]).await, "granted");
    rig.dao.freeze(&target, true).await?;
    let caller = rig.caller();
    let (mut is_held, mut is_frozen) = (true, true);
    while is_held && is_frozen {
        match caller.try_take(["a"]).await {
            Err(conflicts) => assert_eq!(conflicts[0].reason, ConflictReason::Frozen),
            // A grant leaves the freeze in the item, unless the item was collected.
            Ok(_) => is_frozen = false,
        }
        let seen = rig.dao.inspect(&target).await?;
        assert!(is_frozen || !seen.frozen, "it was granted though it is frozen");
        (is_held, is_frozen) = (!seen.holders.is_empty(), seen.frozen);
    }
    if is_frozen {
        assert_eq!(caller.refused(["a"]).await[0].reason, ConflictReason::Frozen);
        rig.dao.freeze(&target, false).await?;
        caller.take(["a"]).await;
    }
    Ok(is_frozen)
}

/// The template goes through the service's own tool, and what comes of it needs no more.
async fn a_stack_of_our_template_has_all_that_is_wanted() -> TestResult {
    let server = shared(Kind::DynamoDb).await?;
    let endpoint = server.url().trim_end_matches('/').to_owned();
    let table = format!("stack-{}", Uuid::new_v4());
    let dao =
        Table::at(server.url()).builder().table(&table).context_index("context-ids-index").open().await?;
    let create = "import sys, boto3\n\
                  stacks = boto3.client('cloudformation', endpoint_url=sys.argv[1], region_name='eu-central-1', \
                  aws_access_key_id='test', aws_secret_access_key='test')\n\
                  stacks.create_stack(StackName=sys.argv[2], TemplateBody=sys.argv[3])\n\
                  stacks.get_waiter('stack_create_complete').wait(StackName=sys.argv[2], WaiterConfig={'Delay': 1})";
    run_python(create, [endpoint, table, dao.schema().cloud_formation()]).await?;
    let findings = dao.doctor().await?;
    // Of stacks this engine ignores the TTL.
    for check in ["table", "context index"] {
        let found = findings.iter().find(|found| found.check == check);
        assert!(found.is_some_and(|found| found.severity == lockcore::Severity::Ok), "{findings:?}");
    }
    Ok(())
}

/// All that a service ever asks for, except administration, is in the least policy, and nothing else is.
async fn the_policy_allows_what_programs_ask_for() -> TestResult {
    let rig = rig::Rig::new().await?;
    drop(rig.open().await);
    let (one, two) = (rig.caller(), rig.caller());
    for ids in [vec!["a"], vec!["a", "b"]] {
        let grant = one.take(ids.clone()).await;
        one.keep(&grant).await;
        two.refused(ids.clone()).await;
        let request = two.request(ids);
        two.send(&request).await;
        two.send(&request).await;
        two.withdraw(&request, lockcore::backend::Withdraw::Undo).await;
        one.free(&grant).await;
    }
    let policy: serde_json::Value = serde_json::from_str(&rig.dao.schema().iam_policy())?;
    let actions: BTreeSet<&str> = policy["Statement"][0]["Action"]
        .as_array()
        .ok_or("a list")?
        .iter()
        .filter_map(|action| action.as_str()?.strip_prefix("dynamodb:"))
        .collect();
    let counted = rig.front.counted();
    // A transaction needs the right to each of its writes.
    let asked: BTreeSet<&str> =
        counted.keys().map(String::as_str).filter(|operation| *operation != "TransactWriteItems").collect();
    assert_eq!(asked, actions);
    Ok(())
}
