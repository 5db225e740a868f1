//! Guarded writes: how a protected resource refuses what a former holder sends too late.

use std::fmt;

/// The fence of a lock that is held exclusively: accepted by [`FenceGuard::admit_exclusive`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExclusiveFence(pub(crate) u64);

/// The fence of a lock that is held shared or as slots: accepted by [`FenceGuard::admit_shared`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SharedFence(pub(crate) u64);

impl ExclusiveFence {
    /// The number, for a resource that does the comparison itself: it must refuse a number lower than
    /// the highest it has seen, and remember this one, in one atomic step.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl SharedFence {
    /// The number, for a resource that does the comparison itself: it must refuse a number lower than
    /// the last *exclusive* one it has seen.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// What a protected resource has to remember so that it refuses the writes of former holders. Keep one
/// for each id, beside the resource, and ask it in the same atomic step as the write.
///
/// Exclusive fences are accepted if they are not lower than the highest seen. Shared and slot fences are
/// checked only against the last exclusive one: their holders work at the same time, so that the order
/// among their numbers means nothing. The wrong guard does not compile:
///
/// ```compile_fail
/// # fn write(held: lockcore::Held<String, uuid::Uuid>, guard: &mut lockcore::FenceGuard) {
/// guard.admit_exclusive(held.shared_fence("tariff").unwrap());
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct FenceGuard {
    exclusive: u64,
}

impl FenceGuard {
    /// A guard that has seen nothing.
    pub const fn new() -> Self {
        FenceGuard { exclusive: 0 }
    }

    /// A guard that has seen this number, as it was stored before.
    pub const fn restore(highest_exclusive: u64) -> Self {
        FenceGuard { exclusive: highest_exclusive }
    }

    /// The highest exclusive number seen, to be stored beside the resource.
    pub fn highest_exclusive(&self) -> u64 {
        self.exclusive
    }

    /// Admits the write of an exclusive holder and remembers its fence.
    ///
    /// # Errors
    /// [`StaleFence`] if a later holder was here before.
    pub fn admit_exclusive(&mut self, fence: ExclusiveFence) -> Result<(), StaleFence> {
        self.check(fence.0)?;
        self.exclusive = fence.0;
        Ok(())
    }

    /// Admits the write of a shared or slot holder.
    ///
    /// # Errors
    /// [`StaleFence`] if a later exclusive holder was here before.
    pub fn admit_shared(&self, fence: SharedFence) -> Result<(), StaleFence> {
        self.check(fence.0)
    }

    fn check(&self, fence: u64) -> Result<(), StaleFence> {
        if fence < self.exclusive { Err(StaleFence { fence, highest: self.exclusive }) } else { Ok(()) }
    }
}

/// That a write came from a former holder and was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleFence {
    /// The fence of the write.
    pub fence: u64,
    /// The highest exclusive fence that was seen before.
    pub highest: u64,
}

impl fmt::Display for StaleFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {} is stale: {} was here before", self.fence, self.highest)
    }
}

impl std::error::Error for StaleFence {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_holder_is_refused_and_shared_holders_are_not_ordered() {
        let mut guard = FenceGuard::new();
        assert!(guard.admit_exclusive(ExclusiveFence(5)).is_ok());
        assert!(guard.admit_exclusive(ExclusiveFence(5)).is_ok());
        assert!(guard.admit_shared(SharedFence(9)).is_ok());
        assert!(guard.admit_shared(SharedFence(7)).is_ok());
        assert!(guard.admit_exclusive(ExclusiveFence(8)).is_ok());
        assert_eq!(guard.admit_shared(SharedFence(7)), Err(StaleFence { fence: 7, highest: 8 }));
        assert!(FenceGuard::restore(9).admit_exclusive(ExclusiveFence(8)).is_err());
    }
}
