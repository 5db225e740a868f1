//! Renewals, and the heartbeat of a process: one write of its session renews all that it holds, and shows that its waiters live.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockcore::{
    LossReason,
    backend::{Moment, shared_runtime},
};

use crate::{
    cell::Cell,
    error::StoreError,
    halves::Halves,
    order,
    parts::{Known, Part, View},
    request::Hold,
    session::Session,
    sessions::{Changed, IfAbsent},
    state::OFFER,
    step::{Losses, Renewable, Step},
    store::Store,
    table::{Table, micros},
    takeover::ALIVE,
};

/// A renewal may have been made this part of a lease ago: more than half of the time between two renewals, so that all grants of a
/// process come to be renewed together, however their first renewals lie.
const YOUNG: u32 = 5;

/// A first renewal is decided by a table that was looked at so long ago.
const RECENT: Duration = Duration::from_secs(1);

/// The outcome of a heartbeat.
enum Beat {
    Written(Arc<Session>),
    /// The cell of the session was removed.
    Gone,
    /// Nothing was written: what it was to renew was released while it waited for the heartbeat before, or was asked for too long ago.
    GivenUp,
}

impl<C: Cell> Store<C> {
    /// Renews what a grant still holds: in the cell of its session, unless only a part of what is held under a fence is to be renewed,
    /// for longer than the table has it, or there is no room left in the cell. The last renewal may be for less than those before. Returns what is lost, and from when the lease counts.
    pub(crate) async fn renew(
        self: &Arc<Self>,
        hold: Hold,
        is_last: bool,
    ) -> Result<(Losses, Option<Moment>), StoreError> {
        let young = Duration::from_micros(hold.lease) / YOUNG;
        // Others that look at the same time share it. A lock that was just handed over was just looked at, and its offer ends soon.
        let (asked, fences) = (order::next(), hold.locks.iter().map(|(_, fence)| *fence).collect::<Vec<_>>());
        let (is_first, own) = (self.own.extended(&fences).is_none(), self.own.name().0);
        // The time may cost a request.
        let soon = if is_first { Some(self.cell.now().await?.hi.saturating_add(OFFER)) } else { None };
        let is_offer = |table: &Table| {
            let is_own_offer = |(id, fence): &(String, u64)| {
                let mut held = table.ids.get(id).into_iter().flat_map(|state| &state.held);
                let held = held.find(|held| held.fence == *fence);
                held.is_some_and(|held| {
                    held.grant.session == own && soon.is_some_and(|soon| held.until <= soon)
                })
            };
            hold.locks.iter().all(is_own_offer)
        };
        let suits = |known: &View<_>| {
            let is_recent = |(_, known): &(Part, Option<Arc<Known<_>>>)| {
                known.as_ref().is_some_and(|known| known.at.elapsed() < RECENT)
            };
            known.begun > asked || (known.parts.iter().all(is_recent) && is_offer(&known.table))
        };
        let known = self.table_with(&hold, suits).await?;
        let now = self.cell.now().await?;
        let sessions = self.sessions.all();
        let mut table = (*known.table).clone();
        let mut step = Step::new(&mut table, &sessions, now, 0, &own);
        let Renewable { mut lost, extend } = step.renew(&hold);
        let is_partial =
            !step.is_whole(&hold) || lost.iter().any(|(_, reason)| *reason == LossReason::Expired);
        // A heartbeat that is too long would lose all that it renews.
        let is_full = self.own.is_full_for(&fences, self.cell.most_bytes().min(1 << 20));
        if is_partial || is_full || step.is_shorter(&hold) {
            return Ok((self.renew_in_table(hold, None).await?, None));
        }
        let mut by_session: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (session, fence) in extend {
            by_session.entry(session).or_default().push(fence);
        }
        let mut since = None;
        for (session, fences) in &by_session {
            let renewed = if *session == own {
                self.own.renews(&own, fences, hold.lease, self.is_apart() && !is_last);
                let (beat, renewed) = self.beat(&own, fences, hold.lease, young).await?;
                since = since.or(beat);
                renewed
            } else {
                self.extend_of(session, fences, hold.lease, &known.table).await?
            };
            // It is renewed if the session says so. Otherwise the table may still hold it: it was closed, or the cell is gone.
            let is_open = |session: &Session, id: &String, fence: &u64| {
                session.renewals.contains_key(fence) && session.closed_until(*fence, id).is_none()
            };
            let held = hold.locks.iter().enumerate().filter(|(position, (_, fence))| {
                fences.contains(fence) && !lost.iter().any(|(of, _)| of == position)
            });
            let is_renewed = renewed
                .as_ref()
                .is_some_and(|session| held.clone().all(|(_, (id, fence))| is_open(session, id, fence)));
            if !is_renewed {
                let gone = renewed.is_none().then(|| session.clone());
                return Ok((self.renew_in_table(hold, gone).await?, None));
            }
            if !known.table.was_there(session) {
                self.mark(&hold, session);
            }
        }
        lost.sort_by_key(|(position, _)| *position);
        Ok((lost, since))
    }

    /// Notes in the table that the cell of a session is there. Nothing waits for that; it is tried again with the next renewal, and by
    /// the next grant.
    fn mark(self: &Arc<Self>, hold: &Hold, session: &str) {
        let (store, parts, session) = (self.clone(), self.parts(hold.ids()), session.to_owned());
        shared_runtime().spawn(async move { store.submit(parts, move |step| step.mark(&session)).await });
    }

    /// Renews what a grant holds in the table, and has this session go on with what a session held whose cell is `gone`.
    async fn renew_in_table(
        self: &Arc<Self>,
        hold: Hold,
        gone: Option<String>,
    ) -> Result<Losses, StoreError> {
        self.own.renews_no_more(hold.locks.iter().map(|(_, fence)| *fence));
        // By the session of before, which is there, as another one may be the own by then.
        let own = if gone.is_some() && self.is_apart() { Some(self.begin().await?) } else { None };
        let extend = |hold: Hold| {
            let (parts, gone, own) = (self.parts(hold.ids()), gone.clone(), own.clone());
            self.submit(parts, move |step| {
                let own = own.clone().unwrap_or_else(|| step.session.to_owned());
                step.extend(&hold, gone.as_deref().map(|gone| (gone, &*own)))
            })
        };
        let Halves { lost, failed } = self.in_halves(hold, extend).await?;
        failed.into_iter().next().map_or(Ok(lost), |(_, error)| Err(error))
    }

    /// Renews grants of this process by its heartbeat, which renews all others of it as well. Returns from when that counts, if a
    /// heartbeat of before was enough, and the session; `None` if its cell was removed.
    async fn beat(
        &self,
        name: &str,
        fences: &[u64],
        lease: u64,
        young: Duration,
    ) -> Result<(Option<Moment>, Option<Arc<Session>>), StoreError> {
        let is_done = async || {
            let known = self.sessions.all().get(name).and_then(|seen| seen.session().cloned());
            // By both clocks: the store's may have stepped since.
            let until = self.cell.now().await?.hi.saturating_add(lease).saturating_sub(micros(young));
            let lasts = |session: &Arc<Session>| {
                let until_of = |fence| session.renewals.get(fence).map(|renewal| renewal.until);
                fences.iter().all(|fence| until_of(fence).is_some_and(|of| of >= until))
            };
            let extended = self.own.extended(fences).filter(|sent| sent.elapsed() < young);
            Ok(extended.zip(known.filter(lasts)).map(|(sent, session)| Some((Some(sent), Some(session)))))
        };
        let beat = async {
            Ok(match self.write_beat(name, fences).await? {
                Beat::Written(session) => Some((None, Some(session))),
                Beat::Gone => Some((None, None)),
                Beat::GivenUp => None,
            })
        };
        // That this one was given up is no failure of those who waited for its heartbeat: the next of them makes one.
        self.own.beating.once(is_done, beat).await?.ok_or(StoreError::Contended { in_doubt: false })
    }

    /// Shows that the waiters of this process are alive, unless that was done within `pause`.
    pub(crate) async fn show_life(&self, pause: Duration) -> Result<(), StoreError> {
        let (name, _) = self.own.name();
        let is_recent = async || Ok(self.own.last().filter(|last| last.elapsed() < pause).map(|_| ()));
        self.own.beating.once(is_recent, async { self.write_beat(&name, &[]).await.map(drop) }).await
    }

    /// Returns the session of this process, whose cell is there. Where each id has a cell of its own, it precedes the first grant and the
    /// first place, so that its absence says in all of them that it was removed: what was renewed there is not known then.
    pub(crate) async fn begin(&self) -> Result<String, StoreError> {
        loop {
            let (name, exists) = self.own.name();
            if exists {
                return Ok(name);
            }
            let is_done = async || Ok(self.own.name().1.then_some(()));
            self.own.beating.once(is_done, async { self.write_beat(&name, &[]).await.map(drop) }).await?;
        }
    }

    /// Writes the session of this process, which extends what is `wanted` and all else that is due.
    async fn write_beat(&self, name: &str, wanted: &[u64]) -> Result<Beat, StoreError> {
        let (own, exists) = self.own.name();
        if own != name {
            return Ok(Beat::Gone);
        }
        let (sent, leases) = (Moment::now(), self.own.due(wanted));
        if wanted.iter().any(|fence| !leases.contains_key(fence)) {
            return Ok(Beat::GivenUp);
        }
        let known = self.known(&[Part::rest()]);
        let waits = self.waiters.count() > 0;
        let stamp = || self.stamp();
        let if_absent = if exists { IfAbsent::Gone } else { IfAbsent::Create };
        let beat = |session: &mut Session, now: lockcore::backend::ServiceTime| {
            session.extend(leases.iter().map(|(fence, lease)| (*fence, *lease)), now);
            if waits {
                session.alive = now.hi.saturating_add(ALIVE);
            }
            match &known {
                _ if self.is_apart() => session.forget_old(|fence| leases.contains_key(&fence), now),
                Some(known) => session.forget(&known.table),
                None => {}
            }
            true
        };
        let changed = self.sessions.change(&self.access(&stamp), name, if_absent, beat).await;
        match changed {
            Ok(Changed::To(session)) => {
                self.own.beaten(name, sent, &leases);
                return Ok(Beat::Written(session));
            }
            Ok(Changed::Gone) | Err(StoreError::Session(_)) => {
                // All that follows is another session's; those who wait move there by asking again.
                self.own.lost(name);
                self.waiters.wake_all();
            }
            Err(_) => {}
        }
        changed.map(|_| Beat::Gone)
    }

    /// Renews grants of another session: a process may go on with what another one took.
    async fn extend_of(
        &self,
        session: &str,
        fences: &[u64],
        lease: u64,
        table: &Table,
    ) -> Result<Option<Arc<Session>>, StoreError> {
        let if_absent = if table.was_there(session) { IfAbsent::Gone } else { IfAbsent::Create };
        let stamp = || self.stamp();
        let extend = |session: &mut Session, now: lockcore::backend::ServiceTime| {
            session.extend(fences.iter().map(|fence| (*fence, lease)), now);
            true
        };
        // The version that is known may be old, and another process's heartbeat goes on.
        match self.sessions.change(&self.access(&stamp), session, if_absent, extend).await? {
            Changed::To(session) => Ok(Some(session)),
            Changed::Gone => Ok(None),
        }
    }
}
