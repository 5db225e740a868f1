//! The answers of the routines, in types and as the text that every server sends.
//!
//! Times are microseconds of the server's clock, ids, contexts and labels are hexadecimal, truth is 0 or 1.
//!
//! | order | text |
//! | --- | --- |
//! | acquire | `G` and fences, separated by commas, or one for all: all granted, exclusively, to the caller alone; else [`Acquiring`] |
//! | withdraw | empty: holds nothing; else [`Acquiring`] with `g` |
//! | release, renew | empty: nothing was lost; else a list of `[position from 0, 0 expired / 1 broken / 2 vanished]` |
//! | heartbeat, notifications | [`Notification`] |
//! | list | `{"ids": [Inspected], "next": id or null}` |
//! | inspect | [`Inspected`] |
//! | release context | a list of ids |
//! | break | `{"left": null}` not held, `0` freed, otherwise how long it will be held at most |
//! | sweep | `{"removed": n, "more": 0, "elsewhere": 0}` |
//! | freeze, leave | anything |

use std::time::{Duration, SystemTime};

use lockcore::{
    BreakRecord, Broken, Conflict, ConflictReason, ContextId, Grant, Granted, HeldBy, Holder, Ident,
    Inspection, Listing, LossReason, LostLock, Mode, Owner, StoredContext, Swept, Target, WaitingFor,
    backend::AcquireRequest,
};
use serde::Deserialize;
use serde_json::Value;

use super::{Order, ServerError, request::mode};

/// The answer to an order. An engine reads it once from its server's text, by [`Answer::read`] or, of one part of a
/// batch, by [`Answer::of_acquire`] and [`Answer::of_release`].
#[derive(Debug)]
pub(crate) enum Answer {
    /// To an acquire or withdrawal: the whole set is held.
    Granted(Vec<Granted>),
    /// To an acquire: nothing is held, and the request does not wait.
    Refused(Vec<Against>),
    /// To an acquire: nothing is held yet, and the request has a place in the queue.
    Queued {
        conflicts: Vec<Against>,
        /// The place is in the row of the id, where only those who know the id find it: heartbeats have to name it.
        in_row: bool,
        /// The time until the first lease in the way ends.
        end: Option<Duration>,
    },
    /// To an acquire: the attempt was withdrawn before.
    Withdrawn,
    /// To a withdrawal: nothing is held, and nothing will be.
    Left,
    /// To a release or renewal: the positions of what was lost.
    Lost(Vec<(usize, LossReason)>),
    /// To a heartbeat.
    Notified(Notification),
    Released(Vec<Hex>),
    Listed(Listed),
    Inspected(Inspected),
    Broken(Broken),
    Swept(Swept),
    /// There is nothing to say.
    Done,
}

/// `[mode, permits, limit, fence, units in use, [permit indexes]]`
#[derive(Deserialize, Clone, Debug)]
pub(crate) struct Given(i64, i64, i64, u64, u32, Vec<u32>);

/// Bytes in hexadecimal.
#[derive(Deserialize, Clone, Debug)]
pub(crate) struct Hex(String);

/// `[context, owner, mode, permits, limit, fence, remaining]`
#[derive(Deserialize, Debug)]
struct InTheWay(Hex, Hex, i64, i64, i64, u64, i64);

/// One id in the way: exactly one of `f`, `q`, `h` is there.
#[derive(Deserialize, Debug)]
pub(crate) struct Against {
    /// Its position in the set.
    p: usize,
    /// Frozen.
    #[serde(default)]
    f: i64,
    /// `[context of the head, how many]`
    q: Option<(Hex, usize)>,
    /// At most eight holders, those first whose lease ends last.
    #[serde(default)]
    h: Vec<InTheWay>,
    /// The number of holders.
    #[serde(default)]
    n: usize,
    /// Units in use.
    #[serde(default)]
    u: u32,
}

/// The outcome of a request that was not simply granted.
#[derive(Deserialize, Debug)]
struct Acquiring {
    /// The set in order, if it was granted.
    g: Option<Vec<Given>>,
    /// Else, what is in the way.
    #[serde(default)]
    c: Vec<Against>,
    /// 1: it has a place in the queue; 2: in the row of the id.
    #[serde(default)]
    q: i64,
    /// It was withdrawn before.
    #[serde(default)]
    w: i64,
    /// The time until the first lease in the way ends.
    end: Option<i64>,
}

/// The message that notifies a session, and the answer to its heartbeat.
#[derive(Deserialize, Default, Debug)]
pub(crate) struct Notification {
    /// The time, in the answer to a heartbeat.
    pub(crate) now: Option<u64>,
    /// The delay after which to send the next heartbeat at the latest.
    pub(crate) next: Option<i64>,
    /// Sets that were handed to it; their ids may also come one by one.
    #[serde(default)]
    pub(crate) o: Vec<Handed>,
    /// `[context, attempt]` of those who are to ask again.
    #[serde(default)]
    pub(crate) t: Vec<(Hex, i64)>,
    /// The probe that it sent to itself.
    pub(crate) probe: Option<u32>,
}

/// A set that was handed to a waiter.
#[derive(Deserialize, Debug)]
pub(crate) struct Handed {
    pub(crate) c: Hex,
    pub(crate) a: i64,
    /// The time when it was handed over.
    pub(crate) at: u64,
    /// The time for which it lasts from then.
    pub(crate) lasts: u64,
    pub(crate) g: Vec<Given>,
    /// The id, if they come one by one.
    #[serde(default)]
    i: Option<String>,
}

/// All that is known of one id.
#[derive(Deserialize, Debug)]
pub(crate) struct Inspected {
    i: Hex,
    /// Of each a [`HeldByRow`], a [`WaitingRow`], a [`BreakRow`]; another program may have written a row that is none.
    h: Vec<Value>,
    w: Vec<Value>,
    f: i64,
    b: Vec<Value>,
}

/// `[context, owner, mode, permits, limit, since]`
type WaitingRow = (Hex, Hex, i64, i64, i64, u64);

/// `[context, fence, by, at, freed at once]`, newest last
type BreakRow = (Hex, u64, Hex, u64, i64);

/// `[context, owner, mode, permits, limit, fence, since, lease, remaining, broken, [permit indexes]]`
#[derive(Deserialize, Debug)]
struct HeldByRow(Hex, Hex, i64, i64, i64, u64, u64, u64, i64, i64, Vec<u32>);

/// A page of a list.
#[derive(Deserialize, Debug)]
pub(crate) struct Listed {
    ids: Vec<Inspected>,
    next: Option<Hex>,
}

#[derive(Deserialize, Debug)]
struct Breaking {
    left: Option<i64>,
}

#[derive(Deserialize, Debug)]
struct Sweeping {
    removed: usize,
    more: i64,
    elsewhere: i64,
}

impl Answer {
    /// Reads the text with which a server answers an order.
    pub(crate) fn read(backend: &'static str, order: &Order<'_>, text: &str) -> Result<Self, ServerError> {
        Ok(match order {
            Order::Withdraw { .. } if text.is_empty() => Answer::Left,
            Order::Acquire(request) | Order::Withdraw { request, .. } => {
                Self::of_acquire(backend, text, request.ids.len())?
            }
            Order::Release(_) | Order::Renew(_) | Order::Shorten(_) => Self::of_release(backend, text)?,
            Order::Heartbeat { .. } => Answer::Notified(notification(backend, text)?),
            Order::ReleaseContext(_) => Answer::Released(json(backend, text)?),
            Order::List(_) => Answer::Listed(json(backend, text)?),
            Order::Inspect(_) => Answer::Inspected(json(backend, text)?),
            Order::Break { .. } => Answer::Broken(json::<Breaking>(backend, text)?.into()),
            Order::Sweep { .. } => Answer::Swept(json::<Sweeping>(backend, text)?.into()),
            Order::Freeze { .. } | Order::Leave { .. } => Answer::Done,
        })
    }

    /// Reads what came of a request for `claims` ids.
    pub(crate) fn of_acquire(backend: &'static str, text: &str, claims: usize) -> Result<Self, ServerError> {
        if let Some(fences) = text.strip_prefix('G') {
            let number = |fence: &str| {
                let what = || format!("a fence is {fence:?}");
                fence.parse().map_err(|_| ServerError::Answer { backend, what: what() })
            };
            return match fences.split(',').map(number).collect::<Result<Vec<u64>, _>>()?[..] {
                [fence] => Ok(Self::exclusive(std::iter::repeat_n(fence, claims))),
                ref fences => complete(backend, Self::exclusive(fences.iter().copied()), claims),
            };
        }
        let Acquiring { g, c: conflicts, q, w, end } = json(backend, text)?;
        match g {
            _ if w != 0 => Ok(Answer::Withdrawn),
            Some(given) => complete(backend, Answer::Granted(grant(given)), claims),
            None if q != 0 => Ok(Answer::Queued { conflicts, in_row: q == 2, end: end.map(span) }),
            None => Ok(Answer::Refused(conflicts)),
        }
    }

    /// Reads what a release or renewal lost.
    pub(crate) fn of_release(backend: &'static str, text: &str) -> Result<Self, ServerError> {
        if text.is_empty() {
            return Ok(Answer::Lost(Vec::new()));
        }
        let lost = json::<Vec<(usize, i64)>>(backend, text)?.into_iter();
        let reason = |reason| match reason {
            0 => LossReason::Expired,
            1 => LossReason::Broken,
            _ => LossReason::Vanished,
        };
        Ok(Answer::Lost(lost.map(|(position, code)| (position, reason(code))).collect()))
    }

    /// Makes the answer for a set that was granted exclusively, from its fences.
    pub(crate) fn exclusive(fences: impl Iterator<Item = u64>) -> Self {
        let granted = |fence| Granted { mode: Mode::Exclusive, fence, permits: Vec::new(), in_use: 1 };
        Answer::Granted(fences.map(granted).collect())
    }

    /// Makes the error for an answer of another kind than the order calls for.
    pub(crate) fn unexpected(self, backend: &'static str) -> ServerError {
        ServerError::Answer { backend, what: format!("{self:?}") }
    }
}

/// Checks that a grant is of so many claims.
fn complete(backend: &'static str, answer: Answer, claims: usize) -> Result<Answer, ServerError> {
    match &answer {
        Answer::Granted(granted) if granted.len() != claims => {
            let what = format!("{} locks were granted for {claims} claims", granted.len());
            Err(ServerError::Answer { backend, what })
        }
        _ => Ok(answer),
    }
}

impl From<Breaking> for Broken {
    fn from(Breaking { left }: Breaking) -> Self {
        match left {
            None => Broken::NotHeld,
            Some(0) => Broken::Freed,
            Some(left) => Broken::Within(Some(span(left))),
        }
    }
}

impl From<Sweeping> for Swept {
    fn from(Sweeping { removed, more, elsewhere }: Sweeping) -> Self {
        Swept { removed, more: more != 0, elsewhere: elsewhere != 0 }
    }
}

impl Hex {
    /// Returns the text; what is not UTF-8 was not written by this crate, and is shown as well as it can be.
    pub(crate) fn text(&self) -> String {
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        let bytes: Vec<u8> = self
            .0
            .as_bytes()
            .chunks(2)
            .map(|pair| pair.iter().fold(0, |byte, &half| (byte << 4) | digit(half)))
            .collect();
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    fn owner(&self) -> Owner {
        self.text().into()
    }

    fn context<C: ContextId>(&self) -> StoredContext<C> {
        StoredContext::read(&self.text())
    }
}

fn json<T: for<'de> Deserialize<'de>>(backend: &'static str, text: &str) -> Result<T, ServerError> {
    serde_json::from_str(text).map_err(|error| ServerError::Answer { backend, what: error.to_string() })
}

/// Reads several JSON values that follow each other.
pub(crate) fn parts<T: for<'de> Deserialize<'de>>(
    backend: &'static str,
    text: &str,
) -> impl Iterator<Item = Result<T, ServerError>> {
    let parts = serde_json::Deserializer::from_str(text).into_iter();
    parts.map(move |part| part.map_err(|error| ServerError::Answer { backend, what: error.to_string() }))
}

/// Reads a notification, which may come in several parts.
pub(crate) fn notification(backend: &'static str, text: &str) -> Result<Notification, ServerError> {
    let mut all = Notification::default();
    for part in parts::<Notification>(backend, text) {
        let part = part?;
        all.now = part.now.or(all.now);
        all.next = part.next.or(all.next);
        all.probe = part.probe.or(all.probe);
        all.o.extend(part.o);
        all.t.extend(part.t);
    }
    Ok(all)
}

/// Joins sets of which the ids may have come one by one, in any order.
pub(crate) fn whole(mut handed: Vec<Handed>) -> Vec<Handed> {
    // In hexadecimal the ids have the same order.
    handed.sort_by(|one, other| (one.a, &one.c.0, &one.i).cmp(&(other.a, &other.c.0, &other.i)));
    let mut sets: Vec<Handed> = Vec::with_capacity(handed.len());
    for part in handed {
        match sets.last_mut() {
            Some(set) if set.a == part.a && set.at == part.at && set.c.0 == part.c.0 => {
                set.g.extend(part.g);
            }
            _ => sets.push(part),
        }
    }
    sets
}

/// Converts a set that was granted.
pub(crate) fn grant(given: Vec<Given>) -> Vec<Granted> {
    let granted = |Given(code, permits, limit, fence, in_use, indexes)| Granted {
        mode: mode(code, permits, limit),
        fence,
        permits: indexes,
        in_use,
    };
    given.into_iter().map(granted).collect()
}

/// Converts what is in the way of a request.
pub(crate) fn conflicts<I: Ident, C: ContextId>(
    backend: &'static str,
    request: &AcquireRequest<I, C>,
    against: Vec<Against>,
) -> Result<Vec<Conflict<I, C>>, ServerError> {
    let conflict = |against: Against| {
        let Some(claim) = request.claims.get(against.p) else {
            let what = format!("position {} of {} claims", against.p, request.claims.len());
            return Err(ServerError::Answer { backend, what });
        };
        let reason = if against.f != 0 {
            ConflictReason::Frozen
        } else if let Some((head, count)) = &against.q {
            ConflictReason::QueuedBehind { head: head.context(), count: *count }
        } else {
            let holders =
                against.h.iter().map(|InTheWay(context, owner, code, permits, limit, fence, left)| Holder {
                    context: context.context(),
                    owner: owner.owner(),
                    mode: mode(*code, *permits, *limit),
                    fence: *fence,
                    remaining: Some(span(*left)),
                });
            ConflictReason::Held { holders: holders.collect(), count: against.n, in_use: against.u }
        };
        Ok(Conflict { target: claim.target.clone(), reason })
    };
    against.into_iter().map(conflict).collect()
}

/// Converts what a release or renewal of a grant lost.
pub(crate) fn losses<I: Ident, C>(
    backend: &'static str,
    lost: Vec<(usize, LossReason)>,
    grant: &Grant<I, C>,
) -> Result<Vec<LostLock<I>>, ServerError> {
    let loss = |(position, reason): (usize, LossReason)| {
        let Some(lock) = grant.locks.get(position) else {
            let what = format!("position {position} of {} locks", grant.locks.len());
            return Err(ServerError::Answer { backend, what });
        };
        Ok(LostLock { target: lock.target.clone(), fence: lock.granted.fence, reason })
    };
    lost.into_iter().map(loss).collect()
}

/// Converts an inspection.
pub(crate) fn inspection<I: Ident, C: ContextId>(inspected: Inspected) -> Inspection<I, C> {
    let mut unreadable = None;
    let holders = readable(inspected.h, "a holder", &mut unreadable);
    let waiters = readable(inspected.w, "a waiter", &mut unreadable);
    let breaks = readable(inspected.b, "a break", &mut unreadable);
    let holders = holders.into_iter().map(|row: HeldByRow| HeldBy {
        context: row.0.context(),
        owner: row.1.owner(),
        mode: mode(row.2, row.3, row.4),
        fence: row.5,
        since: time(row.6),
        lease: Some(Duration::from_micros(row.7)),
        remaining: Some(span(row.8)),
        broken: row.9 != 0,
        permits: row.10,
    });
    let waiters = waiters.into_iter().map(|row: WaitingRow| WaitingFor {
        context: row.0.context(),
        owner: row.1.owner(),
        mode: mode(row.2, row.3, row.4),
        since: time(row.5),
    });
    let breaks = breaks.into_iter().map(|(context, fence, by, at, now): BreakRow| BreakRecord {
        context: context.context(),
        fence,
        by: by.owner(),
        at: time(at),
        now: now != 0,
    });
    let stored = inspected.i.text();
    Inspection {
        holders: holders.collect(),
        waiters: waiters.collect(),
        frozen: inspected.f != 0,
        breaks: breaks.collect(),
        unreadable,
        target: Target::from_stored(&stored).ok_or(stored),
    }
}

/// Reads rows one by one, and notes why one cannot be read.
fn readable<T: for<'de> Deserialize<'de>>(
    rows: Vec<Value>,
    what: &str,
    unreadable: &mut Option<String>,
) -> Vec<T> {
    let mut read = Vec::with_capacity(rows.len());
    for row in rows {
        match serde_json::from_value(row) {
            Ok(row) => read.push(row),
            Err(error) => {
                unreadable.get_or_insert_with(|| format!("{what}: {error}"));
            }
        }
    }
    read
}

/// Converts a page.
pub(crate) fn listing<I: Ident, C: ContextId>(Listed { ids, next }: Listed) -> Listing<I, C> {
    Listing { ids: ids.into_iter().map(inspection).collect(), next: next.map(|next| next.text()) }
}

/// Converts the ids that a context held.
pub(crate) fn targets<I: Ident>(ids: &[Hex]) -> Vec<Target<I>> {
    ids.iter().filter_map(|id| Target::from_stored(&id.text())).collect()
}

pub(crate) fn span(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

fn time(micros: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_server_answers_is_read_or_refused() {
        let examples = [
            "G17,18",
            r#"{"g":[[2,2,5,17,3,[0,4]]],"c":[],"q":0,"w":0,"end":null}"#,
            r#"{"g":null,"c":[{"p":0,"h":[["61","62",1,2,5,17,1000000]],"n":3,"u":4}],"q":1,"w":0,"end":5000000}"#,
            r#"[[0,1],[3,0]]"#,
            r#"{"now":17,"next":5,"probe":1,"o":[],"t":[]}{"o":[{"c":"61","a":1,"at":3,"lasts":5,"g":[[2,0,0,7,1,[]]]}]}"#,
            r#"{"ids":[{"id":"61","f":1,"h":[],"w":[],"b":[]}],"next":"62"}"#,
            r#"{"left":-1}"#,
            r#"{"removed":1,"more":0,"elsewhere":0}"#,
        ];
        let request = AcquireRequest {
            context: uuid::Uuid::nil(),
            attempt: lockcore::backend::AttemptId::fresh(),
            claims: lockcore::ClaimSet::new(["a", "b"], Mode::Exclusive).expect("a set"),
            lease: None,
            owner: Owner::default(),
            queue: false,
            nested: false,
            detached: false,
        };
        lockcore_conformance::hostile::feed(&examples, |text| {
            if let Ok(Answer::Queued { conflicts: found, .. } | Answer::Refused(found)) =
                Answer::of_acquire("test", text, 2)
            {
                drop(conflicts::<String, uuid::Uuid>("test", &request, found));
            }
            drop(Answer::of_release("test", text));
            drop(notification("test", text).map(|notified| whole(notified.o)));
            drop(json::<Inspected>("test", text).map(inspection::<String, uuid::Uuid>));
            drop(json::<Listed>("test", text).map(listing::<String, uuid::Uuid>));
            drop(json::<Breaking>("test", text).map(Broken::from));
            drop(json::<Vec<Hex>>("test", text).map(|ids| targets::<String>(&ids)));
        });
    }

    #[test]
    fn the_ids_of_a_set_may_come_one_by_one() {
        let one = |context, attempt, at, fence| {
            let text = format!(
                r#"{{"c":"{context}","a":{attempt},"at":{at},"lasts":5,"g":[[2,0,0,{fence},1,[]]]}}"#
            );
            json::<Handed>("test", &text).expect("an answer")
        };
        let handed = vec![one("61", 1, 3, 7), one("61", 1, 3, 8), one("61", 2, 3, 9), one("62", 2, 3, 10)];
        let sets = whole(handed).into_iter();
        let fences: Vec<Vec<u64>> = sets.map(|set| set.g.iter().map(|given| given.3).collect()).collect();
        assert_eq!(fences, [vec![7, 8], vec![9], vec![10]]);
    }
}
