//! The rules of exclusion and of the queue, as pure functions: whatever decides in this process calls these, so that no two
//! backends differ. SQLite's statements that find one waiter among thousands say them a second time, and a test holds them to these;
//! the routines of the SQL servers (`rules.sql`, `serve.sql`, `pieces.sql`) and the scripts of Redis (`weigh.lua`, `serve.lua`) say them where
//! they decide, and the random histories hold them to the suite's model.

use smallvec::SmallVec;

use crate::Mode;

/// The units of an id in use by some holders: the sum over their modes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct InUse {
    /// Exclusive holders: 0 or 1.
    pub exclusive: u32,
    /// Shared holders.
    pub shared: u32,
    /// Permits held, by all slot holders together.
    pub permits: u32,
}

impl InUse {
    /// Returns what these modes use together.
    pub fn of(modes: impl IntoIterator<Item = Mode>) -> Self {
        modes.into_iter().fold(InUse::default(), |sum, mode| sum.plus(mode))
    }

    /// Adds one more holder.
    #[must_use]
    pub fn plus(mut self, mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => self.exclusive += 1,
            Mode::Shared => self.shared += 1,
            Mode::Slots { permits, .. } => self.permits = self.permits.saturating_add(permits),
        }
        self
    }

    /// Returns the number that refusals and grants report: permits where there are any, else holders.
    pub fn units(&self) -> u32 {
        if self.permits > 0 { self.permits } else { self.shared + self.exclusive }
    }

    /// Returns whether a claim in this mode fits beside the holders.
    pub fn fits(&self, wanted: Mode) -> bool {
        match wanted {
            Mode::Exclusive => self.exclusive == 0 && self.shared == 0 && self.permits == 0,
            Mode::Shared => self.exclusive == 0,
            Mode::Slots { permits, limit } => {
                self.exclusive == 0 && u64::from(self.permits) + u64::from(permits) <= u64::from(limit)
            }
        }
    }
}

/// Returns whether a later claim may pass an earlier waiter for the same id: both are shared, or both are slots and the later
/// one's limit is larger. A set passes another only if it does so on every common id.
pub fn passes(later: Mode, earlier: Mode) -> bool {
    match (later, earlier) {
        (Mode::Shared, Mode::Shared) => true,
        (Mode::Slots { limit: later, .. }, Mode::Slots { limit: earlier, .. }) => later > earlier,
        _ => false,
    }
}

/// The claims further back in a queue that may still be served, while waiters before them have to go on waiting.
///
/// A walk along a queue begins with [`Open`](Admission::Open) and moves it [behind](Admission::behind) each waiter that
/// cannot be served, which leaves fewer claims that may pass. At [`Closed`](Admission::Closed) the walk is over, so that a release costs the same
/// however long the queue is. Nested waiters obey holders only: it does not apply to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Every claim: no waiter was left behind.
    Open,
    /// Shared claims only.
    Shared,
    /// Slots with a limit above this one only.
    SlotsAbove(u32),
    /// None.
    Closed,
}

impl Admission {
    /// Returns whether a claim in this mode [passes] all the waiters that were left behind.
    pub fn admits(self, later: Mode) -> bool {
        match (self, later) {
            (Admission::Open, _) | (Admission::Shared, Mode::Shared) => true,
            (Admission::SlotsAbove(highest), Mode::Slots { limit, .. }) => limit > highest,
            _ => false,
        }
    }

    /// Returns the admission that remains after `waiter` could not be served.
    #[must_use]
    pub fn behind(self, waiter: Mode) -> Admission {
        match (self, waiter) {
            (Admission::Open | Admission::Shared, Mode::Shared) => Admission::Shared,
            (Admission::Open, Mode::Slots { limit, .. }) => Admission::SlotsAbove(limit),
            (Admission::SlotsAbove(highest), Mode::Slots { limit, .. }) => {
                Admission::SlotsAbove(limit.max(highest))
            }
            _ => Admission::Closed,
        }
    }
}

/// The meaning of asking again for an id that the context already holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Again {
    /// A mode that is not stronger: keep mode, permits and fence, refresh the lease.
    Keep,
    /// A stronger mode, or another number of permits: a new grant if no other context blocks, never queued for.
    Change,
}

/// Returns what asking for `wanted` means for a context that holds `held`.
pub fn again(held: Mode, wanted: Mode) -> Again {
    match (held, wanted) {
        (Mode::Slots { permits: a, .. }, Mode::Slots { permits: b, .. }) if a != b => Again::Change,
        _ if crate::claim::strength(wanted) > crate::claim::strength(held) => Again::Change,
        _ => Again::Keep,
    }
}

/// Returns the lowest `permits` indexes that are not among `taken`.
pub fn lowest_free(taken: impl IntoIterator<Item = u32>, permits: u32) -> Vec<u32> {
    let mut taken: SmallVec<[u32; 16]> = taken.into_iter().collect();
    taken.sort_unstable();
    let mut taken = taken.into_iter().peekable();
    let mut free = Vec::new();
    let mut index = 0;
    while (free.len() as u32) < permits {
        match taken.next_if(|&lowest| lowest <= index) {
            Some(lowest) if lowest == index => index += 1,
            Some(_) => {}
            None => {
                free.push(index);
                index += 1;
            }
        }
    }
    free
}

/// Returns the fence of a new grant: `max(previous + 1, clock)`, where `previous` is the highest that the id (or all ids that
/// share the number) ever had and `clock_micros` the store's clock in microseconds since 1970.
pub fn next_fence(previous: u64, clock_micros: u64) -> u64 {
    clock_micros.max(previous.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn slots(permits: u32, limit: u32) -> Mode {
        Mode::Slots { permits, limit }
    }

    #[test]
    fn exclusive_excludes_everything_and_shared_only_exclusive() {
        let none = InUse::default();
        let modes = [Mode::Exclusive, Mode::Shared, slots(1, 2)];
        assert!(modes.iter().all(|&mode| none.fits(mode)));
        let exclusive = none.plus(Mode::Exclusive);
        assert!(!modes.iter().any(|&mode| exclusive.fits(mode)));
        let shared = none.plus(Mode::Shared);
        assert_eq!(modes.map(|mode| shared.fits(mode)), [false, true, true]);
        let permits = none.plus(slots(2, 2));
        assert_eq!(modes.map(|mode| permits.fits(mode)), [false, true, false]);
        assert!(permits.fits(slots(1, 3)));
        assert!(!none.plus(slots(u32::MAX, u32::MAX)).fits(slots(u32::MAX, u32::MAX)));
    }

    #[test]
    fn only_shared_passes_shared_and_only_larger_limits_pass_slots() {
        assert!(passes(Mode::Shared, Mode::Shared));
        assert!(passes(slots(1, 3), slots(1, 2)));
        assert!(!passes(slots(1, 2), slots(1, 2)));
        assert!(!passes(Mode::Shared, slots(1, 2)));
        assert!(!passes(slots(1, 2), Mode::Shared));
        assert!(!passes(Mode::Shared, Mode::Exclusive));
        assert!(!passes(Mode::Exclusive, Mode::Shared));
    }

    #[test]
    fn the_wall_admits_what_passes_all_that_were_left_behind() {
        let modes = [Mode::Exclusive, Mode::Shared, slots(1, 1), slots(1, 2), slots(2, 2), slots(1, 3)];
        for first in modes {
            for second in modes {
                let admission = Admission::Open.behind(first).behind(second);
                for later in modes {
                    let all = passes(later, first) && passes(later, second);
                    assert_eq!(admission.admits(later), all, "{later:?} after {first:?} and {second:?}");
                }
            }
        }
    }

    #[test]
    fn a_closed_wall_admits_none_and_an_open_one_all() {
        for mode in [Mode::Exclusive, Mode::Shared, slots(1, u32::MAX)] {
            assert!(Admission::Open.admits(mode) && !Admission::Closed.admits(mode));
            assert_eq!(Admission::Closed.behind(mode), Admission::Closed);
        }
    }

    #[test]
    fn the_lowest_free_permits_are_taken() {
        assert_eq!(lowest_free([], 2).as_slice(), [0, 1]);
        assert_eq!(lowest_free([3, 0, 1], 2).as_slice(), [2, 4]);
        assert_eq!(lowest_free([1, 1, 0], 1).as_slice(), [2]);
    }

    #[test]
    fn asking_again_keeps_the_stronger_mode() {
        assert_eq!(again(Mode::Exclusive, Mode::Shared), Again::Keep);
        assert_eq!(again(slots(2, 3), Mode::Shared), Again::Keep);
        assert_eq!(again(slots(2, 3), slots(2, 9)), Again::Keep);
        assert_eq!(again(slots(2, 3), slots(1, 3)), Again::Change);
        assert_eq!(again(slots(2, 3), slots(3, 3)), Again::Change);
        assert_eq!(again(Mode::Shared, Mode::Exclusive), Again::Change);
    }
}
