//! Where an id is: its shard by its hash, and its slot once the shard is locked.

use smallvec::SmallVec;

/// The location of one id of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) hash: u64,
    pub(crate) shard: u8,
    /// The position of the shard's guard in a [`Locked`](crate::table::Locked).
    pub(crate) guard: u8,
    /// Its slot in the shard, or `Spot::ABSENT`. Valid while the shard is locked.
    pub(crate) slot: u32,
}

/// The locations of the ids of a set, in its order.
pub(crate) type Spots = SmallVec<[Spot; 12]>;

impl Spot {
    pub(crate) const ABSENT: u32 = u32::MAX;

    pub(crate) fn slot(&self) -> Option<u32> {
        (self.slot != Self::ABSENT).then_some(self.slot)
    }

    /// The same id, located in its shard.
    pub(crate) fn at(self, slot: Option<u32>) -> Spot {
        Spot { slot: slot.unwrap_or(Self::ABSENT), ..self }
    }

    /// Sets its location in the locked shard.
    pub(crate) fn set(&mut self, slot: Option<u32>) {
        self.slot = slot.unwrap_or(Self::ABSENT);
    }

    /// The set of these spots' shards.
    pub(crate) fn shards(spots: &[Spot]) -> u64 {
        spots.iter().fold(0, |shards, spot| shards | 1 << spot.shard)
    }
}
