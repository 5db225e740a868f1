//! Requests about a whole namespace: on its table, or from page to page of the cells of its ids.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt, TryStreamExt, future::ready, stream};
use lockcore::{Listing, Page, Swept, backend::Moment};

use crate::{
    admin,
    cell::Cell,
    driver::WRITES_KEPT,
    error::StoreError,
    parts::{IDS, Part},
    progress::{Pages, Sweeping},
    session::KEPT,
    step::Step,
    store::{AT_ONCE, Prepared, Store},
    table::Table,
    takeover::Scope,
};

/// The most ids of a page.
const PAGE: usize = 128;

/// The most pages that one sweep looks at.
const PAGES: usize = 16;

/// The time from its first call in which a sweep collects sessions: one that was granted something since then, and is not among those
/// that were seen, is not [old](KEPT) yet.
const USED: Duration = Duration::from_micros(KEPT / 2);

impl<C: Cell> Store<C> {
    /// Looks at the next parts that can be read; returns them, none at the end.
    async fn look_at_next(&self, pages: &mut Pages) -> Result<Vec<Part>, StoreError> {
        loop {
            while pages.parts.is_empty() && !pages.is_over {
                let page = self.cell.list(IDS, pages.after.as_deref()).await?;
                pages.parts.extend(page.cells.iter().filter_map(|(name, _)| Part::named(name)));
                pages.after = page.cells.last().filter(|_| page.more).map(|(name, _)| name.clone());
                pages.is_over = pages.after.is_none();
            }
            let most = pages.parts.len().min(PAGE).min(self.cell.at_once());
            let parts: Vec<Part> = pages.parts.iter().take(most).cloned().collect();
            let parts = match self.look(&parts).await {
                Ok(_) => parts,
                Err(error) if error.is_of_content() => {
                    pages.unreadable = Some(error);
                    self.readable(parts).await?
                }
                Err(error) => return Err(error),
            };
            pages.parts.drain(..most);
            if most == 0 || !parts.is_empty() {
                return Ok(parts);
            }
        }
    }

    /// Returns the parts that can be read, looked at one by one.
    pub(crate) async fn readable(&self, parts: Vec<Part>) -> Result<Vec<Part>, StoreError> {
        let looks = parts.into_iter().map(|part| async {
            match self.look(std::slice::from_ref(&part)).await {
                Ok(_) => Ok(Some(part)),
                Err(error) if error.is_of_content() => Ok(None),
                Err(error) => Err(error),
            }
        });
        let readable = stream::iter(looks).buffered(AT_ONCE);
        readable.try_filter_map(|part| ready(Ok(part))).try_collect().await
    }

    /// Lists what is held, waited for or frozen.
    pub(crate) async fn list(self: &Arc<Self>, page: Page) -> Result<Listing<String, String>, StoreError> {
        if !self.is_apart() {
            self.prepare(&Scope { all: true, shows: true, ..Scope::default() }).await?;
            return self.submit(vec![Part::rest()], move |step| admin::list(step, &page)).await;
        }
        let after = page.after.as_ref().map(|after| self.parts([after])[0].name().to_owned());
        let mut found = Listing { ids: Vec::new(), next: None };
        let mut pages = Pages { after, ..Pages::default() };
        loop {
            let parts = self.look_at_next(&mut pages).await?;
            if let Some(error) = pages.unreadable {
                return Err(error);
            }
            if parts.is_empty() {
                return Ok(found);
            }
            let ids = parts.iter().filter_map(Part::id).collect();
            self.prepare(&Scope { ids, all: true, shows: true, ..Scope::default() }).await?;
            // One more than there is room for, to see whether there is more.
            let all = Page { limit: parts.len(), ..page.clone() };
            found.ids.extend(self.by(&parts, |step| admin::list(step, &all)).await?.ids);
            if found.ids.len() > page.limit {
                found.ids.truncate(page.limit);
                found.next = found.ids.last().and_then(|last| last.target.clone().err());
                return Ok(found);
            }
        }
    }

    /// Makes a step of what is known of some parts, which is not written.
    pub(crate) async fn by<T>(
        &self,
        parts: &[Part],
        apply: impl FnOnce(&mut Step<'_>) -> T,
    ) -> Result<T, StoreError> {
        let (now, sessions, own) = (self.cell.now().await?, self.sessions.all(), self.own.name().0);
        let mut table = (*self.view(parts).table).clone();
        Ok(apply(&mut Step::new(&mut table, &sessions, now, 0, &own)))
    }

    /// Frees all that a context holds, and takes it from every queue; returns the ids that were held. From each queue of a set at
    /// once.
    pub(crate) async fn release_context(
        self: &Arc<Self>,
        context: String,
    ) -> Result<Vec<String>, StoreError> {
        let release = |context: String| move |step: &mut Step<'_>| step.release_context(&context);
        if !self.is_apart() {
            return self.submit(vec![Part::rest()], release(context)).await;
        }
        let (mut freed, mut failed, mut pages) = (Vec::new(), None, Pages::default());
        loop {
            let parts = self.look_at_next(&mut pages).await?;
            if parts.is_empty() {
                return pages.unreadable.or(failed).map_or(Ok(freed), Err);
            }
            let view = self.view(&parts);
            let holds = view
                .table
                .ids
                .iter()
                .filter(|(_, id)| id.held.iter().any(|held| held.grant.context == context));
            let sets = holds.map(|(id, _)| vec![id.clone()]);
            let places = view.table.places.values().filter(|place| place.context == context);
            let sets =
                sets.chain(places.map(|place| place.claims.iter().map(|claim| claim.id.clone()).collect()));
            let sets: Vec<Vec<String>> = sets.collect();
            for ids in sets {
                match self.submit(self.parts(&ids), release(context.clone())).await {
                    Err(error) if error.is_of_some() => {
                        // As much of it as can be freed.
                        for id in &ids {
                            match self.submit(self.parts([id]), release(context.clone())).await {
                                Err(error) if error.is_of_some() => failed = Some(error),
                                of_it => freed.extend(of_it?),
                            }
                        }
                        // Another process may have put a place back that it saw in one of them.
                        let parts = self.parts(&ids);
                        let is_known = self.look(&parts).await.is_ok();
                        let mut places = self.view(&parts).table.places.clone().into_values();
                        if !is_known || places.any(|place| place.context == context) {
                            failed = failed.or(Some(error));
                        }
                    }
                    of_set => freed.extend(of_set?),
                }
            }
        }
    }

    /// Removes what has had its time, unless that was done `within` so many microseconds.
    pub(crate) async fn sweep(
        self: &Arc<Self>,
        batch: usize,
        within: Option<u64>,
    ) -> Result<Swept, StoreError> {
        let is_recent = move |step: &mut Step<'_>| {
            // One from the future was before the store's clock was set back.
            let is_past = step.table.swept <= step.now.hi;
            within.is_some_and(|within| is_past && step.now.lo.saturating_sub(step.table.swept) < within)
        };
        let (elsewhere, rest) = (Swept { elsewhere: true, ..Swept::default() }, vec![Part::rest()]);
        if self.submit(rest.clone(), is_recent).await? {
            return Ok(elsewhere);
        }
        let prepared = match self.is_apart() {
            true => Prepared::default(),
            false => self.prepare(&Scope { all: true, most: batch, ..Scope::default() }).await?,
        };
        let sweep = move |step: &mut Step<'_>| (!is_recent(step)).then(|| step.sweep(batch, WRITES_KEPT));
        let Some((mut removed, mut more)) = self.submit(rest, sweep).await? else {
            return Ok(elsewhere);
        };
        let mut sweeping = self.sweeping.lock().await;
        if within.is_some() {
            // The first call of a sweep.
            *sweeping = Sweeping::default();
        }
        let begun = *sweeping.begun.get_or_insert_with(Moment::now);
        if self.is_apart() && !sweeping.ids_are_done {
            (removed, more) = self.sweep_ids(&mut sweeping, batch).await?;
            sweeping.ids_are_done = !more;
            if more {
                return Ok(Swept { removed, more, ..Swept::default() });
            }
        }
        // The sessions in a cell that cannot be read are not known, so that none is collected.
        let used = sweeping.pages.unreadable.is_none().then_some(&sweeping.used);
        let more_cells = match self.is_apart() && begun.elapsed() >= USED {
            // The next sweep is faster, as this one removed what was over.
            true => Ok(false),
            false => self.collect(batch, used).await,
        };
        if !matches!(more_cells, Ok(true)) {
            let passed = std::mem::take(&mut *sweeping).pages.unreadable;
            passed.filter(|_| more_cells.is_ok()).map_or(Ok(()), Err)?;
        }
        let more_cells = more_cells?;
        more |= more_cells || (prepared.more && (removed > 0 || prepared.failed.is_empty()));
        Ok(Swept { removed, more, ..Swept::default() })
    }

    /// Goes on with removing what has had its time from the cells of ids, about at most `batch` things; returns how many, and whether
    /// there are more cells.
    async fn sweep_ids(
        self: &Arc<Self>,
        sweeping: &mut Sweeping,
        batch: usize,
    ) -> Result<(usize, bool), StoreError> {
        let (mut removed, mut looked) = (0, 0);
        while removed < batch && looked < PAGES {
            looked += 1;
            let parts = self.look_at_next(&mut sweeping.pages).await?;
            if parts.is_empty() {
                return Ok((removed, false));
            }
            let used = self.view(&parts);
            sweeping.used.extend(used.table.sessions().into_iter().map(str::to_owned));
            let (ids, left) = (parts.iter().filter_map(Part::id).collect(), batch - removed);
            let before = removed;
            let prepared = self.prepare(&Scope { ids, all: true, most: left, ..Scope::default() }).await?;
            let (mut over, mut others) = (Vec::new(), Vec::new());
            for part in parts {
                // That the last writes of processes are forgotten is no reason to write.
                let changes = |step: &mut Step<'_>| {
                    let state =
                        |table: &Table| (table.ids.clone(), table.places.clone(), table.there.clone());
                    let before = state(step.table);
                    step.room_for_all();
                    step.sweep(left, WRITES_KEPT);
                    before != state(step.table)
                };
                match self.by(std::slice::from_ref(&part), changes).await? {
                    true => over.push(part),
                    false => others.push(part),
                }
            }
            for part in over {
                if removed >= batch {
                    // The next call goes on with it.
                    sweeping.pages.parts.push_back(part);
                    continue;
                }
                let left = batch - removed;
                let sweep = move |step: &mut Step<'_>| {
                    step.room_for_all();
                    step.sweep(left, WRITES_KEPT)
                };
                removed += self.submit(vec![part], sweep).await?.0;
            }
            if prepared.more && (removed > before || prepared.failed.is_empty()) {
                // There is more to read or to close than could be at once.
                sweeping.pages.parts.extend(others);
            }
        }
        Ok((removed, true))
    }
}
