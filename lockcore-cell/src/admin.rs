//! The administrator's requests, and their answers.

use std::{
    collections::BTreeSet,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockcore::{
    BreakMode, BreakRecord, Broken, HeldBy, Inspection, Listing, Page, StoredContext, WaitingFor, protocol,
};
use serde_json::Map;

use crate::{
    error::StoreError,
    sessions::name,
    step::Step,
    table::{Break, micros},
    takeover::SeenCell,
};

/// An inspection in stored forms; `target` is always `Err`.
pub(crate) type Inspected = Inspection<String, String>;

/// The time for which breaks are kept on record.
const BREAKS_KEPT_FOR: u64 = micros(protocol::BREAKS_KEPT_FOR);

impl Step<'_> {
    /// Breaks the lock that is held under `fence`, and records that `by` did.
    pub(crate) fn break_lock(&mut self, id: &str, fence: u64, how: BreakMode, by: &str) -> Broken {
        self.clean();
        let state = self.table.ids.get(id);
        let found = state.and_then(|state| state.held.iter().find(|held| held.fence == fence)).cloned();
        let Some(held) = found else { return Broken::NotHeld };
        let (context, left) = (held.grant.context.clone(), self.left(id, &held));
        let now = how == BreakMode::Now;
        let state = self.table.ids.get_mut(id).expect("it was found above");
        if now || !held.broken {
            let rest = Map::new();
            state.record(Break { context, fence, by: by.to_owned(), at: self.now.lo, now, rest });
        }
        if now {
            state.held.retain(|held| held.fence != fence);
            self.rooms.push((id.to_owned(), 0));
            self.serve();
            return Broken::Freed;
        }
        for held in state.held.iter_mut().filter(|held| held.fence == fence) {
            held.broken = true;
        }
        Broken::Within(Some(left))
    }

    /// Freezes an id, or thaws it and serves its waiters.
    pub(crate) fn freeze(&mut self, id: &str, frozen: bool) {
        if frozen || self.table.ids.contains_key(id) {
            self.table.ids.entry(id.to_owned()).or_default().frozen = frozen;
        }
        // Of two requests the later one counts, and an earlier one names nothing by which it could be refused.
        self.is_written = true;
        self.rooms.push((id.to_owned(), 0));
        self.serve();
    }

    /// Frees all that a context holds, and takes it from every queue; returns the ids that were held.
    pub(crate) fn release_context(&mut self, context: &str) -> Vec<String> {
        self.clean();
        self.remove_places(|_, place| place.context == context);
        let mut freed = Vec::new();
        for (id, state) in &mut self.table.ids {
            let before = state.held.len();
            state.held.retain(|held| held.grant.context != context);
            if state.held.len() < before {
                freed.push(id.clone());
                self.rooms.push((id.clone(), 0));
            }
        }
        self.serve();
        freed
    }

    /// Removes at most `most` locks and tombstones that have had their time; returns how many, and whether there are more.
    pub(crate) fn sweep(&mut self, most: usize, writes_kept: u64) -> (usize, bool) {
        let (mut removed, mut more) = self.remove_ended_up_to(most);
        let lo = self.now.lo;
        self.table.tombstones.retain(|_, until| {
            let is_over = *until < lo;
            more |= is_over && removed == most;
            let goes = is_over && removed < most;
            removed += usize::from(goes);
            !goes
        });
        let old = lo.saturating_sub(BREAKS_KEPT_FOR);
        for id in self.table.ids.values_mut() {
            id.breaks.retain(|broken| broken.at >= old);
        }
        self.serve();
        self.table.prune(lo, writes_kept);
        if self.table.of.as_ref().is_none_or(BTreeSet::is_empty) {
            self.table.swept = lo;
        }
        (removed, more)
    }
}

/// Lists what is held, waited for or frozen.
pub(crate) fn list(step: &Step<'_>, page: &Page) -> Listing<String, String> {
    let waited_for =
        step.table.places.values().flat_map(|place| &place.claims).map(|claim| claim.id.as_str());
    let waited_for = waited_for.filter(|id| step.table.has(id));
    let mut all: Vec<&str> = step.table.ids.keys().map(String::as_str).chain(waited_for).collect();
    all.sort_unstable();
    all.dedup();
    let after = |id: &&str| page.after.as_deref().is_none_or(|after| *id > after);
    let found = all.into_iter().filter(after).map(|id| inspect(step, id));
    let mut found = found.filter(|id| !id.holders.is_empty() || !id.waiters.is_empty() || id.frozen);
    let ids: Vec<_> = found.by_ref().take(page.limit).collect();
    let next = found.next().and_then(|_| ids.last()?.target.clone().err());
    Listing { ids, next }
}

/// Returns all that is known of one id. Holders whose lease is over are left out.
pub(crate) fn inspect(step: &Step<'_>, id: &str) -> Inspected {
    let state = step.table.ids.get(id);
    let held = state.map(|state| &state.held[..]).unwrap_or_default();
    let lasts =
        |held: &&crate::table::Held| step.table.until(id, held, step.sessions, step.now) >= step.now.lo;
    let mut sessions = held.iter().map(|held| &held.grant.session);
    let unreadable = sessions
        .find(|session| step.sessions.get(*session).is_some_and(|seen| seen.cell == SeenCell::Unreadable));
    let unreadable = unreadable.map(|session| StoreError::Session(name(session)).to_string());
    let mut holders: Vec<_> = held
        .iter()
        .filter(lasts)
        .map(|held| {
            let grant = &held.grant;
            HeldBy {
                context: StoredContext::Known(grant.context.clone()),
                owner: grant.owner.as_str().into(),
                mode: held.mode,
                permits: held.permits.clone(),
                fence: held.fence,
                since: time(grant.since),
                lease: Some(Duration::from_micros(held.lease)),
                remaining: Some(step.left(id, held)),
                broken: held.broken,
            }
        })
        .collect();
    holders.sort_by_key(|holder| holder.fence);
    let waiting = step.table.places.values().filter_map(|place| {
        let claim = place.claims.iter().find(|claim| claim.id == id)?;
        Some(WaitingFor {
            context: StoredContext::Known(place.context.clone()),
            owner: place.owner.as_str().into(),
            mode: claim.mode,
            since: time(place.since),
        })
    });
    let breaks = state.map(|state| &state.breaks[..]).unwrap_or_default().iter().map(|broken| BreakRecord {
        context: StoredContext::Known(broken.context.clone()),
        fence: broken.fence,
        by: broken.by.as_str().into(),
        at: time(broken.at),
        now: broken.now,
    });
    Inspection {
        target: Err(id.to_owned()),
        holders,
        waiters: waiting.collect(),
        frozen: state.is_some_and(|state| state.frozen),
        breaks: breaks.collect(),
        unreadable,
    }
}

fn time(micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros)
}
