//! The answers of the routines: text, and the same from every database.
//!
//! Times are microseconds of the server's clock, ids, contexts and labels are hexadecimal, truth is 0 or 1.
//!
//! | order | answer |
//! | --- | --- |
//! | acquire | `G` and fences, separated by commas, or one for all: all granted, exclusively, to the caller alone; else [`Acquiring`] |
//! | withdraw | empty: left; else [`Acquiring`] with `g` |
//! | release, renew | empty: nothing was lost; else a list of `[position from 0, 0 expired / 1 broken / 2 vanished]` |
//! | beat, what is pushed | [`Told`] |
//! | list | `{"ids": [Inspected], "next": id or null}` |
//! | inspect | [`Inspected`] |
//! | release context | a list of ids |
//! | break | `{"left": null}` not held, `0` freed, otherwise how long it will be held at most |
//! | sweep | `{"removed": n, "more": 0, "elsewhere": 0}` |
//! | freeze, leave | anything |

use std::time::{Duration, SystemTime};

use lockcore::{
    AcquireRequest, BreakRecord, Broken, Conflict, ConflictReason, ContextId, Grant, Granted, HeldBy, Holder,
    Ident, Inspection, Listing, LossReason, LostLock, Owner, StoredContext, Swept, Target, WaitingFor,
};
use serde::Deserialize;
use smallvec::SmallVec;

use super::{ServerError, request::mode};

/// A set that was granted.
pub(crate) type Set = SmallVec<[Granted; 1]>;

/// `[mode, permits, limit, fence, units in use, [permit indexes]]`
#[derive(Deserialize, Clone, Debug)]
pub(crate) struct Given(i64, i64, i64, u64, u32, SmallVec<[u32; 2]>);

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
    /// How many hold it.
    #[serde(default)]
    n: usize,
    /// Units in use.
    #[serde(default)]
    u: u32,
}

/// [`Acquiring::q`] of who waits where only who knows the id finds it, so that signs of life have to tell that.
pub(crate) const IN_ROW: i64 = 2;

/// What became of a request that was not simply granted.
#[derive(Deserialize, Debug)]
pub(crate) struct Acquiring {
    /// The set in order, if it was granted.
    pub(crate) g: Option<Vec<Given>>,
    /// Else, what is in the way.
    #[serde(default)]
    pub(crate) c: Vec<Against>,
    /// It has a place in the queue; with [`IN_ROW`] in the row of the id.
    #[serde(default)]
    pub(crate) q: i64,
    /// It was withdrawn before.
    #[serde(default)]
    pub(crate) w: i64,
    /// In how long the first lease in the way ends.
    pub(crate) end: Option<i64>,
}

/// What a session is told.
#[derive(Deserialize, Default, Debug)]
pub(crate) struct Told {
    /// The time, in the answer to a sign of life.
    pub(crate) now: Option<u64>,
    /// In how long to give the next sign of life at the latest.
    pub(crate) next: Option<i64>,
    /// What was handed to it: sets, of which the ids may also come one by one.
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
    /// When.
    pub(crate) at: u64,
    /// For how long from then.
    pub(crate) lasts: u64,
    pub(crate) g: Vec<Given>,
    /// Of which id, if they come one by one.
    #[serde(default)]
    i: Option<String>,
}

/// All that is known of one id.
#[derive(Deserialize, Debug)]
pub(crate) struct Inspected {
    i: Hex,
    /// `[context, owner, mode, permits, limit, fence, since, lease, remaining, broken, [permit indexes]]`
    h: Vec<HeldByRow>,
    /// `[context, owner, mode, permits, limit, since]`
    w: Vec<(Hex, Hex, i64, i64, i64, u64)>,
    f: i64,
    /// `[context, fence, by, at, freed at once]`, newest last
    b: Vec<(Hex, u64, Hex, u64, i64)>,
}

#[derive(Deserialize, Debug)]
struct HeldByRow(Hex, Hex, i64, i64, i64, u64, u64, u64, i64, i64, SmallVec<[u32; 2]>);

#[derive(Deserialize, Debug)]
struct Listed {
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

impl Hex {
    /// The text; what is no UTF-8 was not written by us, and is shown as well as it can be.
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

/// Reads an answer in JSON.
pub(crate) fn read<T: for<'de> Deserialize<'de>>(
    backend: &'static str,
    answer: &str,
) -> Result<T, ServerError> {
    serde_json::from_str(answer).map_err(|error| ServerError::Answer { backend, what: error.to_string() })
}

/// Reads an answer of several parts in JSON.
pub(crate) fn parts<T: for<'de> Deserialize<'de>>(
    backend: &'static str,
    answer: &str,
) -> impl Iterator<Item = Result<T, ServerError>> {
    let parts = serde_json::Deserializer::from_str(answer).into_iter();
    parts.map(move |part| part.map_err(|error| ServerError::Answer { backend, what: error.to_string() }))
}

/// Reads what a session is told.
pub(crate) fn told(backend: &'static str, answer: &str) -> Result<Told, ServerError> {
    let mut told = Told::default();
    for part in parts::<Told>(backend, answer) {
        let part = part?;
        told.now = part.now.or(told.now);
        told.next = part.next.or(told.next);
        told.probe = part.probe.or(told.probe);
        told.o.extend(part.o);
        told.t.extend(part.t);
    }
    Ok(told)
}

/// Sets of which the ids may have come one by one, in any order.
pub(crate) fn whole(mut told: Vec<Handed>) -> Vec<Handed> {
    // In hexadecimal the ids have the same order.
    told.sort_by(|one, other| (one.a, &one.c.0, &one.i).cmp(&(other.a, &other.c.0, &other.i)));
    let mut sets: Vec<Handed> = Vec::with_capacity(told.len());
    for handed in told {
        match sets.last_mut() {
            Some(set) if set.a == handed.a && set.at == handed.at && set.c.0 == handed.c.0 => {
                set.g.extend(handed.g);
            }
            _ => sets.push(handed),
        }
    }
    sets
}

/// The fences of an answer that begins with `G`.
pub(crate) fn plain_grant(backend: &'static str, fences: &str, claims: usize) -> Result<Set, ServerError> {
    let mut granted = Set::new();
    for fence in fences.split(',') {
        let fence = fence.parse().map_err(|_| {
            let what = format!("a fence is {fence:?}");
            ServerError::Answer { backend, what }
        })?;
        let (mode, permits) = (lockcore::Mode::Exclusive, SmallVec::new());
        granted.push(Granted { mode, fence, permits, in_use: 1 });
    }
    if let [one] = &granted[..] {
        granted = smallvec::smallvec![one.clone(); claims];
    }
    checked(backend, granted, claims)
}

/// The set that was granted.
pub(crate) fn grant(backend: &'static str, given: Vec<Given>, claims: usize) -> Result<Set, ServerError> {
    let granted = given.into_iter().map(|Given(code, permits, limit, fence, in_use, indexes)| Granted {
        mode: mode(code, permits, limit),
        fence,
        permits: indexes,
        in_use,
    });
    checked(backend, granted.collect(), claims)
}

fn checked(backend: &'static str, granted: Set, claims: usize) -> Result<Set, ServerError> {
    if granted.len() == claims {
        return Ok(granted);
    }
    let what = format!("{} locks were granted for {claims} claims", granted.len());
    Err(ServerError::Answer { backend, what })
}

/// What is in the way of a request.
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

/// The reason of a loss for which there is no other: the lock was not there any more.
pub(crate) const VANISHED: i64 = 2;

/// What a release or renewal lost.
pub(crate) fn losses<I: Ident, C>(
    backend: &'static str,
    answer: &str,
    grant: &Grant<I, C>,
) -> Result<Vec<LostLock<I>>, ServerError> {
    if answer.is_empty() {
        return Ok(Vec::new());
    }
    let lost = read::<Vec<(usize, i64)>>(backend, answer)?.into_iter().map(|(position, reason)| {
        let Some(lock) = grant.locks.get(position) else {
            let what = format!("position {position} of {} locks", grant.locks.len());
            return Err(ServerError::Answer { backend, what });
        };
        let reason = match reason {
            0 => LossReason::Expired,
            1 => LossReason::Broken,
            _ => LossReason::Vanished,
        };
        Ok(LostLock { target: lock.target.clone(), fence: lock.granted.fence, reason })
    });
    lost.collect()
}

/// An inspection.
pub(crate) fn inspection<I: Ident, C: ContextId>(inspected: Inspected) -> Inspection<I, C> {
    let holders = inspected.h.into_iter().map(|row| HeldBy {
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
    let waiters = inspected.w.into_iter().map(|(context, owner, code, permits, limit, since)| WaitingFor {
        context: context.context(),
        owner: owner.owner(),
        mode: mode(code, permits, limit),
        since: time(since),
    });
    let breaks = inspected.b.into_iter().map(|(context, fence, by, at, now)| BreakRecord {
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
        target: Target::from_stored(&stored).ok_or(stored),
    }
}

/// A page.
pub(crate) fn listing<I: Ident, C: ContextId>(
    backend: &'static str,
    answer: &str,
) -> Result<Listing<I, C>, ServerError> {
    let listed: Listed = read(backend, answer)?;
    let next = listed.next.map(|next| next.text());
    Ok(Listing { ids: listed.ids.into_iter().map(inspection).collect(), next })
}

/// The ids that a context held.
pub(crate) fn targets<I: Ident>(backend: &'static str, answer: &str) -> Result<Vec<Target<I>>, ServerError> {
    let ids: Vec<Hex> = read(backend, answer)?;
    Ok(ids.iter().filter_map(|id| Target::from_stored(&id.text())).collect())
}

/// What became of a break.
pub(crate) fn broken(backend: &'static str, answer: &str) -> Result<Broken, ServerError> {
    Ok(match read::<Breaking>(backend, answer)?.left {
        None => Broken::NotHeld,
        Some(0) => Broken::Freed,
        Some(left) => Broken::Within(Some(span(left))),
    })
}

/// What a sweep did.
pub(crate) fn swept(backend: &'static str, answer: &str) -> Result<Swept, ServerError> {
    let Sweeping { removed, more, elsewhere } = read(backend, answer)?;
    Ok(Swept { removed, more: more != 0, elsewhere: elsewhere != 0 })
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
    fn the_ids_of_a_set_may_come_one_by_one() {
        let one = |context, attempt, at, fence| {
            let text = format!(
                r#"{{"c":"{context}","a":{attempt},"at":{at},"lasts":5,"g":[[2,0,0,{fence},1,[]]]}}"#
            );
            read::<Handed>("test", &text).expect("an answer")
        };
        let told = vec![one("61", 1, 3, 7), one("61", 1, 3, 8), one("61", 2, 3, 9), one("62", 2, 3, 10)];
        let sets = whole(told).into_iter();
        let fences: Vec<Vec<u64>> = sets.map(|set| set.g.iter().map(|given| given.3).collect()).collect();
        assert_eq!(fences, [vec![7, 8], vec![9], vec![10]]);
    }
}
