//! The holders of one id: none or one without an allocation, several in a table.

use std::collections::BTreeSet;

use hashbrown::{HashMap, HashSet};
use lockcore::{
    ContextId, Mode, Owner,
    backend::{AcquireRequest, AttemptId, List},
    rules::{InUse, lowest_free},
};

use crate::clock::{Lease, StoreTime};

/// One lock that is held.
#[derive(Debug)]
pub(crate) struct Holder<C> {
    pub(crate) context: C,
    /// The attempt that was granted it: undoing another one does not affect it.
    pub(crate) attempt: AttemptId,
    pub(crate) mode: Mode,
    /// An administrator broke it: it expires, and is not renewed.
    pub(crate) broken: bool,
    pub(crate) permits: List<u32>,
    pub(crate) fence: u64,
    pub(crate) since: StoreTime,
    pub(crate) lease: Lease,
    pub(crate) expires: StoreTime,
    pub(crate) owner: Owner,
    /// What the context held before this attempt changed the mode, in case that the attempt is undone.
    pub(crate) before: Option<Box<Holder<C>>>,
}

/// The holders of one id, at most one row per context.
#[derive(Debug)]
pub(crate) enum Holders<C> {
    None,
    One(Holder<C>),
    Many(Box<ManyHolders<C>>),
}

/// Several holders.
#[derive(Debug)]
pub(crate) struct ManyHolders<C> {
    rows: HashMap<C, Holder<C>>,
    in_use: InUse,
    /// No row ends before this. It may be too early, never too late.
    earliest: StoreTime,
    permits: PermitPool,
}

/// The free permits: all from `unused` on, and the returned ones below.
#[derive(Debug, Default)]
struct PermitPool {
    unused: u32,
    returned: BTreeSet<u32>,
}

impl<C: ContextId> Holder<C> {
    /// Creates the holder that a request names.
    pub(crate) fn new<I>(
        request: &AcquireRequest<I, C>,
        mode: Mode,
        permits: List<u32>,
        fence: u64,
        since: StoreTime,
        expires: StoreTime,
    ) -> Self {
        Holder {
            context: request.context.clone(),
            attempt: request.attempt,
            mode,
            broken: false,
            permits,
            fence,
            since,
            lease: Lease::of(request.lease),
            expires,
            owner: request.owner.clone(),
            before: None,
        }
    }
}

impl<C: ContextId> Holders<C> {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Holders::None)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Holders::None => 0,
            Holders::One(_) => 1,
            Holders::Many(many) => many.rows.len(),
        }
    }

    pub(crate) fn row(&self, context: &C) -> Option<&Holder<C>> {
        match self {
            Holders::None => None,
            Holders::One(holder) => (holder.context == *context).then_some(holder),
            Holders::Many(many) => many.rows.get(context),
        }
    }

    pub(crate) fn in_use(&self) -> InUse {
        match self {
            Holders::None => InUse::default(),
            Holders::One(holder) => InUse::default().plus(holder.mode),
            Holders::Many(many) => many.in_use,
        }
    }

    /// Returns what all holders but the context have in use.
    pub(crate) fn in_use_by_others(&self, context: &C) -> InUse {
        match self {
            Holders::None => InUse::default(),
            Holders::One(holder) if holder.context == *context => InUse::default(),
            Holders::One(holder) => InUse::default().plus(holder.mode),
            Holders::Many(many) => match many.rows.get(context) {
                Some(own) => minus(many.in_use, own.mode),
                None => many.in_use,
            },
        }
    }

    /// No holder's lease ends before this.
    pub(crate) fn earliest_expiry(&self) -> StoreTime {
        match self {
            Holders::None => StoreTime::NEVER,
            Holders::One(holder) => holder.expires,
            Holders::Many(many) => many.earliest,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Holder<C>> {
        let (one, many) = match self {
            Holders::None => (None, None),
            Holders::One(holder) => (Some(holder), None),
            Holders::Many(many) => (None, Some(many.rows.values())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Puts a new row in, whose context has none, and gives it the lowest free permits.
    pub(crate) fn insert(&mut self, mut holder: Holder<C>) -> &mut Holder<C> {
        if !self.is_empty() {
            return self.insert_beside_others(holder);
        }
        let wanted = holder.mode.permits();
        if wanted > 0 {
            holder.permits = (0..wanted).collect();
        }
        *self = Holders::One(holder);
        match self {
            Holders::One(holder) => holder,
            _ => unreachable!("set in the line above"),
        }
    }

    /// Puts a row back that was replaced, with its own permits. Where there were fewer for a while, others may have some of them by now,
    /// or need the rest: then it is lost.
    pub(crate) fn restore(&mut self, holder: Holder<C>) {
        let own: HashSet<u32> = holder.permits.iter().copied().collect();
        let others_have = |permit: &u32| own.contains(permit);
        let is_taken = self.iter().any(|row| row.permits.iter().any(others_have));
        if is_taken || !self.in_use().fits(holder.mode) {
            return;
        }
        if self.is_empty() {
            *self = Holders::One(holder);
        } else {
            let many = self.several();
            many.permits.take_these(&holder.permits);
            many.add(holder);
        }
    }

    fn insert_beside_others(&mut self, mut holder: Holder<C>) -> &mut Holder<C> {
        let many = self.several();
        holder.permits = many.permits.take(holder.mode.permits());
        many.add(holder)
    }

    /// The holders of an id that has some.
    fn several(&mut self) -> &mut ManyHolders<C> {
        if let Holders::One(_) = self {
            let Holders::One(first) = std::mem::replace(self, Holders::None) else {
                unreachable!("matched in the line above");
            };
            *self = Holders::Many(Box::new(ManyHolders::of(first)));
        }
        let Holders::Many(many) = self else {
            unreachable!("there are others");
        };
        many
    }

    /// Drops the context's row.
    pub(crate) fn drop_row(&mut self, context: &C) {
        match self {
            Holders::One(holder) if holder.context == *context => *self = Holders::None,
            _ => drop(self.remove(context)),
        }
    }

    /// Takes the context's row out.
    pub(crate) fn remove(&mut self, context: &C) -> Option<Holder<C>> {
        match self {
            Holders::None => None,
            Holders::One(holder) => {
                if holder.context != *context {
                    return None;
                }
                match std::mem::replace(self, Holders::None) {
                    Holders::One(holder) => Some(holder),
                    _ => unreachable!("matched in the lines above"),
                }
            }
            Holders::Many(many) => {
                let holder = many.rows.remove(context)?;
                many.in_use = minus(many.in_use, holder.mode);
                many.permits.give_back(&holder.permits);
                if many.rows.is_empty() {
                    *self = Holders::None;
                }
                Some(holder)
            }
        }
    }

    /// Has the context's row end at `expires`, unless it ends later.
    pub(crate) fn extend(&mut self, context: &C, lease: Lease, expires: StoreTime) {
        if self.row(context).is_some_and(|row| row.expires <= expires) {
            self.set_end(context, lease, expires);
        }
    }

    /// Has the context's row end at `expires`.
    pub(crate) fn set_end(&mut self, context: &C, lease: Lease, expires: StoreTime) {
        let row = match self {
            Holders::None => None,
            Holders::One(holder) => Some(holder),
            Holders::Many(many) => {
                many.earliest = many.earliest.min(expires);
                many.rows.get_mut(context)
            }
        };
        if let Some(row) = row {
            row.lease = lease;
            row.expires = expires;
        }
    }

    /// Marks the context's row as broken.
    pub(crate) fn mark_broken(&mut self, context: &C) {
        match self {
            Holders::One(holder) if holder.context == *context => holder.broken = true,
            Holders::Many(many) => {
                if let Some(holder) = many.rows.get_mut(context) {
                    holder.broken = true;
                }
            }
            _ => {}
        }
    }

    /// Takes out the rows whose lease has ended, at most `max` of them.
    pub(crate) fn expired(&mut self, now: StoreTime, max: usize) -> Vec<Holder<C>> {
        if self.earliest_expiry() > now {
            return Vec::new();
        }
        let over = self.iter().filter(|row| row.expires <= now).take(max);
        let contexts: Vec<C> = over.map(|row| row.context.clone()).collect();
        let rows = contexts.iter().filter_map(|context| self.remove(context)).collect();
        if let Holders::Many(many) = self {
            let ends = many.rows.values().map(|row| row.expires);
            many.earliest = ends.min().unwrap_or(StoreTime::NEVER);
        }
        rows
    }
}

impl<C: ContextId> ManyHolders<C> {
    fn of(first: Holder<C>) -> Self {
        let in_use = InUse::default().plus(first.mode);
        let permits = PermitPool::without(&first.permits);
        let earliest = first.expires;
        let rows = HashMap::from_iter([(first.context.clone(), first)]);
        ManyHolders { rows, in_use, earliest, permits }
    }

    fn add(&mut self, holder: Holder<C>) -> &mut Holder<C> {
        self.in_use = self.in_use.plus(holder.mode);
        self.earliest = self.earliest.min(holder.expires);
        self.rows.entry(holder.context.clone()).insert(holder).into_mut()
    }
}

impl PermitPool {
    fn without(taken: &[u32]) -> Self {
        let unused = taken.iter().max().map_or(0, |highest| highest + 1);
        let below = unused - taken.len() as u32;
        PermitPool { unused, returned: lowest_free(taken.iter().copied(), below).into_iter().collect() }
    }

    /// The lowest free ones.
    fn take(&mut self, wanted: u32) -> List<u32> {
        (0..wanted)
            .map(|_| {
                self.returned.pop_first().unwrap_or_else(|| {
                    self.unused += 1;
                    self.unused - 1
                })
            })
            .collect()
    }

    /// Takes these, which are free.
    fn take_these(&mut self, permits: &[u32]) {
        for permit in permits {
            self.returned.extend(self.unused..=*permit);
            self.unused = self.unused.max(permit + 1);
            self.returned.remove(permit);
        }
    }

    fn give_back(&mut self, permits: &[u32]) {
        self.returned.extend(permits);
        // Keeps the set as small as the number of permits held below the highest one.
        while self.unused > 0 && self.returned.last() == Some(&(self.unused - 1)) {
            self.returned.pop_last();
            self.unused -= 1;
        }
    }
}

/// The same use with one holder less.
fn minus(mut in_use: InUse, mode: Mode) -> InUse {
    match mode {
        Mode::Exclusive => in_use.exclusive -= 1,
        Mode::Shared => in_use.shared -= 1,
        Mode::Slots { permits, .. } => in_use.permits -= permits,
    }
    in_use
}
