//! Contexts are their bytes, as ids are, section 7. The suite's stores have UUIDs for contexts, so that this is no check of
//! the registry: a backend's tests call it with a store whose contexts are text.

use std::time::Duration;

use lockcore::{
    Claim, ClaimSet, Conflict, ConflictReason, Grant, Granted, LockDao, MAX_CONTEXT_BYTES, Mode,
    StoredContext,
    backend::{AcquireRequest, Acquired, AttemptId, Wake},
};
use tokio::time::timeout;

use crate::{PATIENCE, judge::late};

/// Long enough not to end during the check.
const LEASE: Duration = Duration::from_secs(600);

/// 7 and 2.8: whatever a context and its owner label consist of, it excludes others, is excluded, shown, renewed, waits
/// and is freed in every mode, and never passes for another.
pub async fn odd_contexts_are_kept_apart<D: LockDao<String, String>>(dao: &D) {
    let contexts = odd_contexts();
    for context in &contexts {
        for mode in modes(dao) {
            one_is_like_any_other(dao, context, mode).await;
        }
    }
    let able = dao.capabilities();
    if able.shared {
        // All at once: each is a holder of its own, and only the last one's release makes room.
        let mut held = Vec::new();
        for context in &contexts {
            held.push(take(dao, &request(context, Mode::Shared)).await);
        }
        for grant in &held {
            let conflicts = refused(dao, &request("plain", Mode::Exclusive)).await;
            assert!(
                matches!(&conflicts[0].reason, ConflictReason::Held { count, .. } if *count > 0),
                "{grant:?}"
            );
            free(dao, grant).await;
        }
        free(dao, &take(dao, &request("plain", Mode::Exclusive)).await).await;
    }
}

fn modes<D: LockDao<String, String>>(dao: &D) -> Vec<Mode> {
    let able = dao.capabilities();
    let mut modes = vec![Mode::Exclusive];
    modes.extend(able.shared.then_some(Mode::Shared));
    modes.extend(able.slots.then_some(Mode::Slots { permits: 1, limit: 2 }));
    modes
}

async fn one_is_like_any_other<D: LockDao<String, String>>(dao: &D, context: &str, mode: Mode) {
    let what = format!("{context:?} in {mode:?}");
    let wanted = request(context, mode);
    let held = take(dao, &wanted).await;
    let seen = refused(dao, &request("plain", Mode::Exclusive)).await;
    let ConflictReason::Held { holders, count: 1, .. } = &seen[0].reason else { panic!("{what}: {seen:?}") };
    assert_eq!(holders[0].context, StoredContext::Known(context.to_owned()), "{what}");
    assert_eq!(&*holders[0].owner, context, "{what}");
    if dao.capabilities().listing {
        let seen = dao.inspect(&held.locks[0].target).await.expect("the store answers");
        assert_eq!(seen.holders.len(), 1, "{what}: {seen:?}");
        assert_eq!(seen.holders[0].context, StoredContext::Known(context.to_owned()), "{what}");
    }
    if let Mode::Slots { .. } = mode {
        let second = take(dao, &request("second", mode)).await;
        refused(dao, &request("third", mode)).await;
        free(dao, &second).await;
    }
    keep(dao, &held).await;
    // Again by the same one: one lock, whatever its name is.
    let again = take(dao, &request(context, mode)).await;
    assert_eq!(again.locks[0].granted.fence, held.locks[0].granted.fence, "{what}");
    if dao.capabilities().fifo {
        let behind = waits(dao, &request(&format!("{context}!"), Mode::Exclusive), &held).await;
        let turn = waits(dao, &wanted, &behind).await;
        free(dao, &turn).await;
    } else {
        free(dao, &held).await;
    }
    free(dao, &take(dao, &request("plain", Mode::Exclusive)).await).await;
}

/// Waits until `before` is freed, and has it then.
async fn waits<D: LockDao<String, String>>(
    dao: &D,
    wanted: &AcquireRequest<String, String>,
    before: &Grant<String, String>,
) -> Grant<String, String> {
    let mut wanted = wanted.clone();
    (wanted.attempt, wanted.queue) = (AttemptId::fresh(), true);
    let mut answer = dao.acquire(&wanted).await.expect("the store answers");
    free(dao, before).await;
    let turn = async {
        loop {
            match answer {
                Acquired::Granted(granted) => return made(&wanted, granted),
                Acquired::Queued { mut wakeup, .. } => match wakeup.recv().await {
                    Wake::Offer(offer) => return made(&wanted, offer.granted),
                    Wake::Recheck => {}
                },
                Acquired::Refused(conflicts) => panic!("{wanted:?}: {conflicts:?}"),
            }
            answer = dao.acquire(&wanted).await.expect("the store answers");
        }
    };
    let grant = timeout(PATIENCE, turn).await.unwrap_or_else(|_| late("its turn comes"));
    keep(dao, &grant).await;
    grant
}

async fn take<D: LockDao<String, String>>(
    dao: &D,
    request: &AcquireRequest<String, String>,
) -> Grant<String, String> {
    match dao.acquire(request).await.expect("the store answers") {
        Acquired::Granted(granted) => made(request, granted),
        other => panic!("{request:?}: {other:?}"),
    }
}

async fn refused<D: LockDao<String, String>>(
    dao: &D,
    request: &AcquireRequest<String, String>,
) -> Vec<Conflict<String, String>> {
    match dao.acquire(request).await.expect("the store answers") {
        Acquired::Refused(conflicts) => conflicts,
        other => panic!("{request:?}: {other:?}"),
    }
}

async fn keep<D: LockDao<String, String>>(dao: &D, grant: &Grant<String, String>) {
    assert_eq!(dao.renew(grant).await.expect("the store answers").lost, [], "{grant:?}");
}

async fn free<D: LockDao<String, String>>(dao: &D, grant: &Grant<String, String>) {
    assert_eq!(dao.release(grant).await.expect("the store answers").lost, [], "{grant:?}");
}

fn made(
    request: &AcquireRequest<String, String>,
    granted: impl IntoIterator<Item = Granted>,
) -> Grant<String, String> {
    let granted = granted.into_iter().collect();
    Grant::new(request.context.clone(), request.claims.clone(), granted, request.lease)
}

/// A request for the one id that all is about, with the context for an owner label too.
fn request(context: &str, mode: Mode) -> AcquireRequest<String, String> {
    let target = lockcore::Target::Id("a".to_owned());
    AcquireRequest {
        context: context.to_owned(),
        attempt: AttemptId::fresh(),
        claims: ClaimSet::new([Claim { target, mode }], Mode::Exclusive).expect("one claim"),
        lease: Some(LEASE),
        owner: context.into(),
        queue: false,
        nested: false,
        detached: false,
    }
}

fn odd_contexts() -> Vec<String> {
    let mut contexts: Vec<String> = [
        "t",
        "T",
        "t ",
        "t\0",
        "t\0a",
        "t\0b",
        "\0",
        "\0\0",
        "\n",
        "t\n",
        "t\r\n",
        "\t",
        "\u{ff}",
        "\u{fffd}",
        "\u{10ffff}",
        "\u{1F512}",
        "%",
        "%s",
        "%d%n%s",
        "~",
        "lc1~shared",
        "lc2~shared|0|0|",
        "lc2~frozen",
        "lc2|1|1:a||",
        "|",
        "a|b|",
        "|||600|x|0|",
        "{}",
        "{a}",
        "}",
        "1:x",
        "'",
        "\"",
        "\\",
        "\\0",
        "''; --",
        "/",
        ":",
        "%00",
        "null",
        "-1",
        "0x0",
    ]
    .map(str::to_owned)
    .to_vec();
    // Lua formats a text of 100 bytes and more in another way than a shorter one.
    for part in ["x", "\0", "%", "|", "\u{1F512}"] {
        contexts.push(part.repeat(99 / part.len()));
        contexts.push(part.repeat(MAX_CONTEXT_BYTES / part.len() - 1));
    }
    contexts
}
