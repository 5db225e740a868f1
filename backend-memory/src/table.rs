//! The table of ids: shards behind a mutex each, and the ids of a shard in slots behind an index.

use hashbrown::HashTable;
use lockcore::{ContextId, Ident, Target};
use smallvec::{SmallVec, smallvec};

use crate::{
    entry::Entry,
    marks::{Obituaries, Withdrawals},
    sync::{HashState, Mutex, MutexGuard},
};

/// As many shards as a `u64` has bits, so that a set of shards is one number.
pub(crate) const MAX_SHARDS: usize = 64;

/// How many of a shard's vacant slots keep their key, for the next one to be written into its memory.
const SPARE_KEYS: usize = 4;

/// A shard that never had more slots keeps them, however few ids it has.
const KEPT_SLOTS: usize = 1024;

/// A shard that has more slots than that shrinks when fewer than one in so many is in use.
const SPARSE: usize = 4;

/// Where one id of a set is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    hash: u64,
    shard: u8,
    /// Which of the guards of a [`Locked`] is the shard's.
    guard: u8,
    /// Its slot in the shard, or `Spot::ABSENT`. Good as long as the shard is locked.
    slot: u32,
}

/// Where the ids of a set are, in the order of the set.
pub(crate) type Spots = SmallVec<[Spot; 12]>;

/// All shards.
#[derive(Debug)]
pub(crate) struct Tables<I, C> {
    shards: Box<[Shard<I, C>]>,
    hasher: HashState,
}

/// A cache line or two of its own, so that threads on different shards do not slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<I, C>(Mutex<Table<I, C>>);

/// What is known of the ids of one shard.
#[derive(Debug)]
pub(crate) struct Table<I, C> {
    index: HashTable<u32>,
    slots: Vec<Entry<I, C>>,
    vacant: Vec<u32>,
    /// So few of the slots are in use that the next lock of the shard moves them together.
    sparse: bool,
    /// The highest fence that any id of the shard had.
    pub(crate) high_water: u64,
    pub(crate) withdrawals: Withdrawals<C>,
    pub(crate) obituaries: Obituaries<I, C>,
}

/// One shard, locked.
pub(crate) type Guard<'t, I, C> = MutexGuard<'t, Table<I, C>>;

/// Some shards, locked.
pub(crate) struct Locked<'t, I, C> {
    tables: &'t Tables<I, C>,
    shards: u64,
    guards: SmallVec<[Guard<'t, I, C>; 12]>,
}

impl Spot {
    const ABSENT: u32 = u32::MAX;

    #[inline]
    pub(crate) fn slot(&self) -> Option<u32> {
        (self.slot != Self::ABSENT).then_some(self.slot)
    }

    /// The same, located in its shard as the only one of a [`Locked`].
    #[inline]
    pub(crate) fn at(self, slot: Option<u32>) -> Spot {
        Spot { slot: slot.unwrap_or(Self::ABSENT), ..self }
    }

    /// Notes where it is since the shard was locked.
    #[inline]
    pub(crate) fn set(&mut self, slot: Option<u32>) {
        self.slot = slot.unwrap_or(Self::ABSENT);
    }

    #[inline]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn shards(spots: &[Spot]) -> u64 {
        spots.iter().fold(0, |shards, spot| shards | 1 << spot.shard)
    }
}

impl<I: Ident, C: ContextId> Tables<I, C> {
    pub(crate) fn new(shards: usize) -> Self {
        let shards = shards.clamp(1, MAX_SHARDS).next_power_of_two();
        Tables {
            shards: (0..shards).map(|_| Shard(Mutex::new(Table::new()))).collect(),
            hasher: HashState::default(),
        }
    }

    pub(crate) fn shard_count(&self) -> usize {
        self.shards.len()
    }

    /// The set of all shards.
    pub(crate) fn all(&self) -> u64 {
        u64::MAX >> (MAX_SHARDS - self.shards.len())
    }

    /// Where an id is, as far as its hash tells.
    #[inline]
    pub(crate) fn spot(&self, target: &Target<I>) -> Spot {
        use std::hash::BuildHasher;
        let hash = match target {
            Target::Global => 0,
            Target::Id(id) => self.hasher.hash_one(id),
        };
        // Neither the lowest bits nor the highest ones, by which the index of the shard goes.
        let shard = (hash >> 32) as usize & (self.shards.len() - 1);
        Spot { hash, shard: shard as u8, guard: 0, slot: Spot::ABSENT }
    }

    #[inline]
    pub(crate) fn spots<'t>(&self, targets: impl Iterator<Item = &'t Target<I>>) -> Spots
    where
        I: 't,
    {
        targets.map(|target| self.spot(target)).collect()
    }

    /// Locks the shard of one id.
    #[inline]
    pub(crate) fn lock_one(&self, spot: &Spot) -> Guard<'_, I, C> {
        self.lock_shard(usize::from(spot.shard))
    }

    /// Every lock of a shard is taken here: slots move only before anything is located.
    #[inline]
    fn lock_shard(&self, shard: usize) -> Guard<'_, I, C> {
        let mut table = self.shards[shard].0.lock();
        if table.sparse {
            table.shrink();
        }
        table
    }

    /// One id that was located under a guard, as a set.
    #[inline]
    pub(crate) fn set_of_one<'t>(&'t self, spot: Spot, guard: Guard<'t, I, C>) -> (Locked<'t, I, C>, Spots) {
        (Locked { tables: self, shards: 1 << spot.shard, guards: smallvec![guard] }, smallvec![spot])
    }

    /// Locks the shards of a set, and locates its ids.
    #[inline]
    pub(crate) fn lock_set<'t>(
        &self,
        targets: impl Iterator<Item = &'t Target<I>> + Clone,
    ) -> (Locked<'_, I, C>, Spots)
    where
        I: 't,
    {
        let mut spots = self.spots(targets.clone());
        let mut locked = self.lock(Spot::shards(&spots));
        locked.locate_all(&mut spots, targets);
        (locked, spots)
    }

    /// Locks shards, in ascending order (invariant 1 of `dao.rs`).
    #[inline]
    pub(crate) fn lock(&self, shards: u64) -> Locked<'_, I, C> {
        let mut locked = Locked { tables: self, shards: 0, guards: SmallVec::new() };
        locked.lock(shards);
        locked
    }
}

impl<I: Ident, C: ContextId> Locked<'_, I, C> {
    /// Goes on with these shards locked: keeps the locks if they are among the locked ones, else gives
    /// all up before it takes the others (invariant 1 of `dao.rs`).
    ///
    /// Says whether it gave them up: then nothing that was located is valid any more.
    pub(crate) fn cover(&mut self, shards: u64) -> bool {
        let gave_up = !self.covers(shards);
        if gave_up {
            self.guards.clear();
            self.lock(shards);
        }
        gave_up
    }

    /// Whether these shards are among the locked ones.
    pub(crate) fn covers(&self, shards: u64) -> bool {
        shards & !self.shards == 0
    }

    fn lock(&mut self, shards: u64) {
        self.shards = shards;
        let mut left = shards;
        while left != 0 {
            self.guards.push(self.tables.lock_shard(left.trailing_zeros() as usize));
            left &= left - 1;
        }
    }

    /// The shard of a spot that was located.
    #[inline]
    pub(crate) fn table(&mut self, spot: &Spot) -> &mut Table<I, C> {
        &mut self.guards[usize::from(spot.guard)]
    }

    /// The entry of a spot that was located.
    #[inline]
    pub(crate) fn entry(&mut self, spot: &Spot) -> Option<&mut Entry<I, C>> {
        let slot = spot.slot()?;
        Some(self.table(spot).entry(slot))
    }

    /// Every locked shard.
    pub(crate) fn tables(&mut self) -> impl Iterator<Item = &mut Table<I, C>> {
        self.guards.iter_mut().map(|guard| &mut **guard)
    }

    /// Fills in where the id is now.
    #[inline]
    pub(crate) fn locate(&mut self, spot: &mut Spot, target: &Target<I>) {
        let below = self.shards & ((1 << spot.shard) - 1);
        spot.guard = if below == 0 { 0 } else { below.count_ones() as u8 };
        let hash = spot.hash;
        spot.slot = self.table(spot).find(hash, target).unwrap_or(Spot::ABSENT);
    }

    #[inline]
    pub(crate) fn locate_all<'t>(&mut self, spots: &mut [Spot], targets: impl Iterator<Item = &'t Target<I>>)
    where
        I: 't,
    {
        spots.iter_mut().zip(targets).for_each(|(spot, target)| self.locate(spot, target));
    }

    /// The entry of a spot that was located, made if there is none.
    #[inline]
    pub(crate) fn entry_or_new(&mut self, spot: &mut Spot, target: &Target<I>) -> &mut Entry<I, C> {
        if spot.slot == Spot::ABSENT {
            let hash = spot.hash;
            spot.slot = self.table(spot).insert(hash, target);
        }
        let slot = spot.slot;
        self.table(spot).entry(slot)
    }

    /// Removes the entry of a spot that was located, if nothing is known of the id any more.
    #[inline]
    pub(crate) fn tidy(&mut self, spot: &mut Spot) {
        if let Some(slot) = spot.slot()
            && self.table(spot).tidy(slot)
        {
            spot.slot = Spot::ABSENT;
        }
    }
}

impl<I: Ident, C: ContextId> Table<I, C> {
    fn new() -> Self {
        Table {
            index: HashTable::new(),
            slots: Vec::new(),
            vacant: Vec::new(),
            sparse: false,
            high_water: 0,
            withdrawals: Withdrawals::new(),
            obituaries: Obituaries::new(),
        }
    }

    /// How many ids something is known of.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    #[inline]
    pub(crate) fn entry(&mut self, slot: u32) -> &mut Entry<I, C> {
        &mut self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn at(&self, slot: u32) -> &Entry<I, C> {
        &self.slots[slot as usize]
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, target: &Target<I>) -> Option<u32> {
        let slots = &self.slots;
        self.index.find(hash, |&slot| slots[slot as usize].is(hash, target)).copied()
    }

    /// Makes an entry for an id that has none.
    #[inline]
    pub(crate) fn insert(&mut self, hash: u64, target: &Target<I>) -> u32 {
        let slot = match self.vacant.pop() {
            Some(slot) => {
                let entry = &mut self.slots[slot as usize];
                entry.hash = hash;
                match (&mut entry.target, target) {
                    (Target::Id(kept), Target::Id(id)) => kept.clone_from(id),
                    (kept, target) => *kept = target.clone(),
                }
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).expect("fewer ids than addresses in a shard");
                self.slots.push(Entry::new(hash, target.clone()));
                slot
            }
        };
        let slots = &self.slots;
        self.index.insert_unique(hash, slot, |&slot| slots[slot as usize].hash);
        slot
    }

    /// Removes the entry if nothing is known of the id any more, and says whether.
    #[inline]
    pub(crate) fn tidy(&mut self, slot: u32) -> bool {
        let entry = &mut self.slots[slot as usize];
        if !entry.is_unused() {
            return false;
        }
        entry.extra = None;
        self.remove(slot);
        true
    }

    /// Removes an entry whose holders and extra are none.
    #[inline]
    pub(crate) fn remove(&mut self, slot: u32) {
        let hash = self.slots[slot as usize].hash;
        // What is not there is vacant already: a slot that were so twice would be given to two ids.
        if let Ok(found) = self.index.find_entry(hash, |&other| other == slot) {
            found.remove();
            self.vacate(slot);
        }
    }

    /// Finds the id's entry, and removes it if `emptied` says that its holders and extra are none; else gives its slot.
    #[inline]
    pub(crate) fn remove_if(
        &mut self,
        hash: u64,
        target: &Target<I>,
        emptied: impl FnOnce(&mut Entry<I, C>) -> bool,
    ) -> Result<(), Option<u32>> {
        let slots = &self.slots;
        let same = |&slot: &u32| slots[slot as usize].is(hash, target);
        let Ok(found) = self.index.find_entry(hash, same) else { return Err(None) };
        let slot = *found.get();
        if !emptied(&mut self.slots[slot as usize]) {
            return Err(Some(slot));
        }
        found.remove();
        self.vacate(slot);
        Ok(())
    }

    #[inline]
    fn vacate(&mut self, slot: u32) {
        self.vacant.push(slot);
        if let Some(cold) = self.vacant.len().checked_sub(SPARE_KEYS + 1) {
            self.slots[self.vacant[cold] as usize].target = Target::Global;
        }
        // Others of a set that are located stay where they are until the shard is locked again; of an empty shard there
        // are none.
        self.sparse = self.slots.capacity() > KEPT_SLOTS.max(SPARSE * self.index.len());
        if self.index.is_empty() && self.sparse {
            self.shrink();
        }
    }

    /// Moves the slots in use together, and gives the memory of the others back. Amortised it costs nothing: at least a
    /// quarter of all slots was vacated since the last time.
    #[cold]
    fn shrink(&mut self) {
        let mut used: Vec<u32> = self.index.iter().copied().collect();
        used.sort_unstable();
        let capacity = used.len() * SPARSE / 2;
        let mut used = used.into_iter().peekable();
        let old = std::mem::take(&mut self.slots).into_iter().zip(0..);
        self.slots.reserve_exact(capacity);
        self.slots.extend(old.filter_map(|(entry, slot)| used.next_if_eq(&slot).map(|_| entry)));
        self.vacant = Vec::new();
        self.index = HashTable::with_capacity(capacity);
        let slots = &self.slots;
        for (entry, slot) in slots.iter().zip(0..) {
            self.index.insert_unique(entry.hash, slot, |&slot| slots[slot as usize].hash);
        }
        self.sparse = false;
    }

    /// The entries in use.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry<I, C>> {
        self.index.iter().map(|&slot| &self.slots[slot as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKEN: u32 = 100_000;

    fn id(number: u32) -> Target<String> {
        Target::Id(format!("id/{number}"))
    }

    /// Adds the id, which stays until it is removed.
    fn insert(tables: &Tables<String, u64>, number: u32) {
        let spot = tables.spot(&id(number));
        tables.lock_one(&spot).insert(spot.hash(), &id(number));
    }

    fn remove(tables: &Tables<String, u64>, number: u32) {
        let spot = tables.spot(&id(number));
        let removed = tables.lock_one(&spot).remove_if(spot.hash(), &id(number), |_| true);
        assert_eq!(removed, Ok(()), "{number}");
    }

    /// For how many ids the shard has memory; a hash table has up to twice the places that it was made for.
    fn capacity(tables: &Tables<String, u64>) -> usize {
        let table = tables.shards[0].0.lock();
        table.slots.capacity().max(table.vacant.capacity()).max(table.index.capacity() / 2)
    }

    #[test]
    fn a_shard_gives_back_the_memory_of_a_burst_though_some_ids_stay() {
        const HELD: u32 = 200;
        let tables = Tables::<String, u64>::new(1);
        // The ids that stay are spread over all slots, the last one included.
        let stays = |number: u32| number % (TAKEN / HELD) == TAKEN / HELD - 1;
        (0..TAKEN).for_each(|number| insert(&tables, number));
        assert!(capacity(&tables) >= TAKEN as usize);
        (0..TAKEN).filter(|number| !stays(*number)).for_each(|number| remove(&tables, number));
        let left = capacity(&tables);
        assert!(
            left <= KEPT_SLOTS.max(8 * HELD as usize),
            "memory for {left} ids, {HELD} of which are known"
        );
        let mut locked = tables.lock(tables.all());
        for number in (0..TAKEN).filter(|number| stays(*number)) {
            let mut spot = tables.spot(&id(number));
            locked.locate(&mut spot, &id(number));
            assert_eq!(locked.entry(&spot).map(|entry| entry.target.clone()), Some(id(number)));
        }
        assert_eq!(locked.table(&tables.spot(&id(0))).len(), HELD as usize);
    }

    #[test]
    fn a_shard_that_shrank_grows_and_becomes_empty_as_before() {
        let tables = Tables::<String, u64>::new(1);
        for _ in 0..3 {
            (0..TAKEN / 10).for_each(|number| insert(&tables, number));
            (10..TAKEN / 10).for_each(|number| remove(&tables, number));
            (0..10).for_each(|number| remove(&tables, number));
            let table = tables.shards[0].0.lock();
            assert_eq!((table.len(), table.entries().count()), (0, 0));
        }
        assert!(capacity(&tables) <= KEPT_SLOTS, "{}", capacity(&tables));
    }
}
