//! What stands against a set: the rules of the holders and of the queue, by `lockcore::rules`.

use std::collections::HashMap;

use lockcore::{
    ConflictReason, Holder, MAX_HOLDERS_LISTED, StoredContext,
    rules::{self, Admission, Again, InUse},
};

use crate::{
    step::{Stance, Step, Wants},
    table::{Claim, Conflicts, Held, Place},
};

/// What stands against a set.
pub(crate) struct Weighed {
    pub(crate) stances: Vec<Stance>,
    pub(crate) conflicts: Conflicts,
}

/// What the waiters that were left behind in a walk along the queue admit, by id.
pub(crate) type Admissions<'t> = HashMap<&'t str, Admission>;

impl Step<'_> {
    /// What the context holds of an id, certainly.
    pub(crate) fn own(&self, context: &str, id: &str) -> Option<&Held> {
        let state = self.table.ids.get(id)?;
        let own = state.held.iter().find(|held| self.table.context_of(held) == context)?;
        (self.table.until(id, own, self.sessions, self.now) >= self.now.hi).then_some(own)
    }

    /// What the waiters before a ticket admit.
    pub(crate) fn admissions(&self, ticket: u64) -> Admissions<'_> {
        let mut admissions = Admissions::new();
        for (_, place) in self.table.places.range(..ticket) {
            leave_behind(&mut admissions, place);
        }
        admissions
    }

    pub(crate) fn weigh(
        &self,
        wants: Wants<'_>,
        admissions: &Admissions<'_>,
        ticket: Option<u64>,
    ) -> Weighed {
        let Wants { context, claims, nested } = wants;
        let mut weighed = Weighed { stances: Vec::with_capacity(claims.len()), conflicts: Vec::new() };
        for (position, claim) in claims.iter().enumerate() {
            let stance = match self.own(context, &claim.id) {
                None => Stance::New,
                Some(own) if own.broken => Stance::Broken,
                Some(own) => match rules::again(own.mode, claim.mode) {
                    Again::Keep => Stance::Keep,
                    Again::Change => Stance::Change,
                },
            };
            let conflict = match stance {
                Stance::Keep => None,
                Stance::Broken => Some(self.held(&claim.id, |_| true)),
                Stance::New | Stance::Change => {
                    let obeys = !nested && stance == Stance::New;
                    self.against(
                        context,
                        claim,
                        if obeys { admissions.get(&*claim.id) } else { None },
                        ticket,
                    )
                }
            };
            weighed.conflicts.extend(conflict.map(|reason| (position, reason)));
            weighed.stances.push(stance);
        }
        weighed
    }

    fn against(
        &self,
        context: &str,
        claim: &Claim,
        admission: Option<&Admission>,
        ticket: Option<u64>,
    ) -> Option<ConflictReason<String>> {
        if let Some(state) = self.table.ids.get(&claim.id) {
            if state.frozen {
                return Some(ConflictReason::Frozen);
            }
            let others = state.held.iter().filter(|held| self.table.context_of(held) != context);
            if !InUse::of(others.map(|held| held.mode)).fits(claim.mode) {
                return Some(self.held(&claim.id, |other| other != context));
            }
        }
        if admission.is_none_or(|admission| admission.admits(claim.mode)) {
            return None;
        }
        let blocks = |place: &Place| {
            place.claims.iter().any(|other| other.id == claim.id && !rules::passes(claim.mode, other.mode))
        };
        let before = self.table.places.range(..ticket.unwrap_or(u64::MAX));
        let mut blocking = before.map(|(_, place)| place).filter(|place| blocks(place)).peekable();
        let head = StoredContext::Known(blocking.peek()?.context.clone());
        Some(ConflictReason::QueuedBehind { head, count: blocking.count() })
    }

    pub(crate) fn held(&self, id: &str, among: impl Fn(&str) -> bool) -> ConflictReason<String> {
        let all = self.table.ids.get(id).map(|state| &state.held[..]).unwrap_or_default();
        let mut blocking: Vec<_> = all.iter().filter(|held| among(self.table.context_of(held))).collect();
        blocking.sort_by_key(|held| std::cmp::Reverse(self.table.until(id, held, self.sessions, self.now)));
        let listed = blocking.iter().take(MAX_HOLDERS_LISTED).map(|held| Holder {
            context: StoredContext::Known(self.table.context_of(held).to_owned()),
            owner: self.table.grants[&held.fence].owner.as_str().into(),
            mode: held.mode,
            fence: held.fence,
            remaining: Some(self.left(id, held)),
        });
        let (holders, count) = (listed.collect(), blocking.len());
        ConflictReason::Held { holders, count, in_use: InUse::of(all.iter().map(|held| held.mode)).units() }
    }
}

pub(crate) fn leave_behind<'t>(admissions: &mut Admissions<'t>, place: &'t Place) {
    for claim in &place.claims {
        let admission = admissions.entry(&claim.id).or_insert(Admission::Open);
        *admission = admission.behind(claim.mode);
    }
}
