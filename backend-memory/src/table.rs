//! The table of ids: shards behind a mutex each, and the ids of a shard in slots behind an index.

use hashbrown::HashTable;
use lockcore::{ContextId, Ident, Target};
use smallvec::{SmallVec, smallvec};

use crate::{
    entry::Entry,
    spot::{Spot, Spots},
    sync::{HashState, Mutex, MutexGuard},
    tombstones::{Losses, Withdrawals},
};

/// As many shards as a `u64` has bits, so that a set of shards is one number.
pub(crate) const MAX_SHARDS: usize = 64;

/// How many of a shard's vacant slots keep their key, whose memory the next id re-uses.
const SPARE_KEYS: usize = 4;

/// A shard that never had more slots keeps them, however few ids it has.
const KEPT_SLOTS: usize = 1024;

/// A shard that has more slots than that shrinks when fewer than one in so many is in use.
const SPARSE: usize = 4;

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

/// The ids of one shard.
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
    pub(crate) losses: Losses<I, C>,
}

/// One shard, locked.
pub(crate) type Guard<'t, I, C> = MutexGuard<'t, Table<I, C>>;

/// Some shards, locked.
pub(crate) struct Locked<'t, I, C> {
    tables: &'t Tables<I, C>,
    shards: u64,
    guards: SmallVec<[Guard<'t, I, C>; 12]>,
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

    /// Returns the shard of an id.
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

    pub(crate) fn spots<'t>(&self, targets: impl Iterator<Item = &'t Target<I>>) -> Spots
    where
        I: 't,
    {
        targets.map(|target| self.spot(target)).collect()
    }

    /// Locks the shard of one id.
    pub(crate) fn lock_one(&self, spot: &Spot) -> Guard<'_, I, C> {
        self.lock_shard(usize::from(spot.shard))
    }

    /// Every lock of a shard is taken here: slots move only before anything is located.
    fn lock_shard(&self, shard: usize) -> Guard<'_, I, C> {
        let mut table = self.shards[shard].0.lock();
        if table.sparse {
            table.shrink();
        }
        table
    }

    /// Makes a set of one id that was located under a guard.
    pub(crate) fn set_of_one<'t>(&'t self, spot: Spot, guard: Guard<'t, I, C>) -> (Locked<'t, I, C>, Spots) {
        (Locked { tables: self, shards: 1 << spot.shard, guards: smallvec![guard] }, smallvec![spot])
    }

    /// Locks the shards of a set, and locates its ids.
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
    /// Returns whether it gave them up: then all locations are invalid.
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
    pub(crate) fn table(&mut self, spot: &Spot) -> &mut Table<I, C> {
        &mut self.guards[usize::from(spot.guard)]
    }

    /// The entry of a spot that was located.
    pub(crate) fn entry(&mut self, spot: &Spot) -> Option<&mut Entry<I, C>> {
        let slot = spot.slot()?;
        Some(self.table(spot).entry(slot))
    }

    /// Every locked shard.
    pub(crate) fn tables(&mut self) -> impl Iterator<Item = &mut Table<I, C>> {
        self.guards.iter_mut().map(|guard| &mut **guard)
    }

    /// Locates the id in its locked shard.
    pub(crate) fn locate(&mut self, spot: &mut Spot, target: &Target<I>) {
        let below = self.shards & ((1 << spot.shard) - 1);
        spot.guard = if below == 0 { 0 } else { below.count_ones() as u8 };
        let hash = spot.hash;
        spot.slot = self.table(spot).find(hash, target).unwrap_or(Spot::ABSENT);
    }

    pub(crate) fn locate_all<'t>(&mut self, spots: &mut [Spot], targets: impl Iterator<Item = &'t Target<I>>)
    where
        I: 't,
    {
        spots.iter_mut().zip(targets).for_each(|(spot, target)| self.locate(spot, target));
    }

    /// The entry of a spot that was located, made if there is none.
    pub(crate) fn entry_or_new(&mut self, spot: &mut Spot, target: &Target<I>) -> &mut Entry<I, C> {
        if spot.slot == Spot::ABSENT {
            let hash = spot.hash;
            spot.slot = self.table(spot).insert(hash, target);
        }
        let slot = spot.slot;
        self.table(spot).entry(slot)
    }

    /// Removes the entry of a spot that was located, if it is unused.
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
            losses: Losses::new(),
        }
    }

    /// Returns the number of ids in use.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn entry(&mut self, slot: u32) -> &mut Entry<I, C> {
        &mut self.slots[slot as usize]
    }

    pub(crate) fn at(&self, slot: u32) -> &Entry<I, C> {
        &self.slots[slot as usize]
    }

    pub(crate) fn find(&self, hash: u64, target: &Target<I>) -> Option<u32> {
        let slots = &self.slots;
        self.index.find(hash, |&slot| slots[slot as usize].is(hash, target)).copied()
    }

    /// Makes an entry for an id that has none.
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

    /// Removes the entry if it is unused; returns whether.
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
    pub(crate) fn remove(&mut self, slot: u32) {
        let hash = self.slots[slot as usize].hash;
        // An absent one is vacant already: a slot that was listed twice would be given to two ids.
        if let Ok(found) = self.index.find_entry(hash, |&other| other == slot) {
            found.remove();
            self.vacate(slot);
        }
    }

    /// Finds the id's entry, and removes it if `emptied` left it without holders and extra; otherwise returns its slot.
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

    /// Moves the slots in use together, and frees the memory of the others. The amortised cost is constant: at least a quarter of
    /// all slots was vacated since the last time.
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
        tables.lock_one(&spot).insert(spot.hash, &id(number));
    }

    fn remove(tables: &Tables<String, u64>, number: u32) {
        let spot = tables.spot(&id(number));
        let removed = tables.lock_one(&spot).remove_if(spot.hash, &id(number), |_| true);
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
