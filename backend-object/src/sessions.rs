//! The objects of sessions: renewals, and the grants that are closed to them.
//!
//! A session is one DAO of one process. Its object is written only when it renews, or when another process takes over from it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockcore::backend::Moment;
use tokio::sync::oneshot;

use crate::{
    cell::{Cell, Found, Version, Written},
    error::StoreError,
    pause::Pause,
    step::Sessions,
    table::{Close, Renewal, Session, Stamp},
};

/// What is known of the objects of sessions.
#[derive(Debug, Default)]
pub(crate) struct Book(Mutex<HashMap<String, Arc<Entry>>>);

#[derive(Debug, Default)]
struct Entry {
    known: Mutex<Option<KnownSession>>,
    /// Held by the task that writes.
    turn: tokio::sync::Mutex<()>,
    /// The renewals that go into the next write.
    pending: Mutex<Vec<Pending>>,
}

#[derive(Clone, Debug)]
struct KnownSession {
    /// `None`: there is no object.
    version: Option<Version>,
    session: Session,
    /// Before it was read.
    read: Moment,
}

#[derive(Debug)]
struct Pending {
    fences: Vec<u64>,
    renewal: Renewal,
    /// All that is closed.
    answer: oneshot::Sender<Result<Closed, StoreError>>,
}

/// The locks that are closed to renewal: when they end, by fence and id.
type Closed = BTreeMap<u64, BTreeMap<String, u64>>;

/// What a change of a session needs.
pub(crate) struct Access<'a, C> {
    pub(crate) cell: &'a C,
    /// The next write of this process.
    pub(crate) stamp: &'a (dyn Fn() -> Stamp + Sync),
    pub(crate) timeout: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn name(session: &str) -> String {
    format!("session/{session}")
}

impl Book {
    fn entry(&self, session: &str) -> Arc<Entry> {
        lock(&self.0).entry(session.to_owned()).or_default().clone()
    }

    /// Returns all that is known.
    pub(crate) fn all(&self) -> Sessions {
        let all = lock(&self.0);
        let known = |entry: &Arc<Entry>| lock(&entry.known).as_ref().map(|known| known.session.clone());
        all.iter().filter_map(|(session, entry)| Some((session.clone(), known(entry)?))).collect()
    }

    /// Forgets the sessions that have no grant any more, but for `own`.
    pub(crate) fn keep(&self, own: &str, live: &BTreeSet<&str>) {
        lock(&self.0).retain(|session, entry| {
            session == own || live.contains(session.as_str()) || Arc::strong_count(entry) > 1
        });
    }

    /// Reads a session, unless that was done after `since`.
    pub(crate) async fn refresh<C: Cell>(
        &self,
        access: &Access<'_, C>,
        session: &str,
        since: Moment,
    ) -> Result<(), StoreError> {
        let entry = self.entry(session);
        let is_fresh = lock(&entry.known).as_ref().is_some_and(|known| is_after(known.read, since));
        if is_fresh { Ok(()) } else { entry.read(access.cell, session).await.map(drop) }
    }

    /// Closes locks of a session to renewal, as they are now.
    pub(crate) async fn close<C: Cell>(
        &self,
        access: &Access<'_, C>,
        session: &str,
        locks: &[Close],
    ) -> Result<(), StoreError> {
        let entry = self.entry(session);
        let _turn = entry.turn.lock().await;
        entry.change(access, session, |session| session.close(locks)).await
    }

    /// Renews grants of a session; returns the locks that are closed. What several tasks renew at once goes into one
    /// write. `live` are the fences of the table, others are forgotten.
    pub(crate) async fn extend<C: Cell>(
        &self,
        access: &Access<'_, C>,
        session: &str,
        fences: Vec<u64>,
        renewal: Renewal,
        live: &(dyn Fn(u64) -> bool + Sync),
    ) -> Result<Closed, StoreError> {
        let entry = self.entry(session);
        loop {
            let (answer, mut answered) = oneshot::channel();
            lock(&entry.pending).push(Pending { fences: fences.clone(), renewal, answer });
            let _turn = entry.turn.lock().await;
            match answered.try_recv() {
                Ok(answer) => return answer,
                // The task that wrote for this one was dropped in between.
                Err(oneshot::error::TryRecvError::Closed) => continue,
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            let batch = mem::take(&mut *lock(&entry.pending));
            let done = entry.change(access, session, |session| extend(session, &batch, live)).await;
            let closed =
                lock(&entry.known).as_ref().map(|known| known.session.closed.clone()).unwrap_or_default();
            for pending in batch {
                // A task that was dropped needs no answer.
                let _ = pending.answer.send(done.clone().map(|()| closed.clone()));
            }
            if let Ok(answer) = answered.try_recv() {
                return answer;
            }
        }
    }
}

fn extend(session: &mut Session, batch: &[Pending], live: &(dyn Fn(u64) -> bool + Sync)) -> bool {
    let mut changed = false;
    for pending in batch {
        changed |= session.extend(&pending.fences, pending.renewal);
    }
    if changed {
        session.renewals.retain(|fence, _| live(*fence));
        session.closed.retain(|fence, _| live(*fence));
    }
    changed
}

impl Entry {
    async fn read<C: Cell>(&self, cell: &C, session: &str) -> Result<KnownSession, StoreError> {
        let (before, read) = (lock(&self.known).clone(), Moment::now());
        let version = before.as_ref().and_then(|known| known.version.clone());
        let known = match (cell.read(&name(session), version.as_ref()).await?, before) {
            (Found::Changed(version, content), _) => {
                // It concerns no other session; this one changes nothing of it.
                let session = Session::read(&content).unwrap_or_else(|_| Session::unreadable());
                KnownSession { version: Some(version), session, read }
            }
            (Found::Unchanged, Some(before)) => KnownSession { read, ..before },
            (Found::Unchanged | Found::Absent, _) => {
                KnownSession { version: None, session: Session::default(), read }
            }
        };
        let mut newest = lock(&self.known);
        // A write that was done meanwhile is newer.
        if newest.as_ref().is_none_or(|newest| is_after(read, newest.read)) {
            *newest = Some(known.clone());
        }
        Ok(newest.clone().unwrap_or(known))
    }

    /// Changes the object on condition that it is the one that is known; `change` returns whether there is anything to write.
    async fn change<C: Cell>(
        &self,
        access: &Access<'_, C>,
        session: &str,
        change: impl Fn(&mut Session) -> bool + Sync,
    ) -> Result<(), StoreError> {
        let mut pause = Pause::new(access.timeout);
        let (mut sent, mut in_doubt, mut is_stale) = (Vec::new(), false, false);
        loop {
            let known = lock(&self.known).clone().filter(|_| !is_stale);
            let tried = async {
                let known = match known {
                    Some(known) => known,
                    None => self.read(access.cell, session).await?,
                };
                if known.session.unreadable {
                    return Err(StoreError::Session(name(session)));
                }
                if sent.contains(&known.session.stamp) {
                    return Ok(true);
                }
                let mut new = known.session.clone();
                if !change(&mut new) {
                    return Ok(true);
                }
                new.stamp = (access.stamp)();
                let read = Moment::now();
                let content = new.write().into();
                match access.cell.replace(&name(session), known.version.as_ref(), content).await {
                    Ok(Written::Done(version)) => {
                        *lock(&self.known) =
                            Some(KnownSession { version: Some(version), session: new, read });
                        Ok(true)
                    }
                    Ok(Written::Lost) => {
                        sent.push(new.stamp);
                        Ok(false)
                    }
                    Err(error) => {
                        sent.push(new.stamp);
                        in_doubt = true;
                        Err(error)
                    }
                }
            };
            let error = match tried.await {
                Ok(true) => return Ok(()),
                Ok(false) => StoreError::Contended { in_doubt: false },
                Err(error) if error.again() => error,
                Err(error) => return Err(error),
            };
            is_stale = true;
            pause.rest(error, in_doubt).await?;
        }
    }
}

fn is_after(one: Moment, other: Moment) -> bool {
    !one.since(&other).is_zero()
}
