//! Guarded writes: how a protected resource refuses what a former holder sends too late.

use std::fmt;

/// The fence of a lock that is held exclusively: accepted by [`FenceGuard::admit_exclusive`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ExclusiveFence(pub(crate) u64);

/// The fence of a lock that is held shared or as slots: accepted by [`FenceGuard::admit_shared`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SharedFence(pub(crate) u64);

impl ExclusiveFence {
    /// Returns the number, for a resource that does the comparison itself. In one atomic step with the write it must refuse a
    /// number lower than the highest of *any* holder it has seen, and remember this one as the highest exclusive one and the
    /// highest of any.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl SharedFence {
    /// Returns the number, for a resource that does the comparison itself. In one atomic step with the write it must refuse a
    /// number lower than the highest *exclusive* one it has seen, and remember this one if it is the highest of any:
    /// otherwise a former exclusive holder could still write after this holder.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The memory of a protected resource, by which it refuses the writes of former holders. Keep one
/// for each id, beside the resource, and ask it in the same atomic step as the write.
///
/// It remembers two numbers: the highest exclusive fence, and the highest of any. An exclusive fence is refused below the
/// highest of any later holder. A shared or slot fence is refused only below the highest exclusive one: such holders work
/// at the same time, so that the order among their numbers means nothing.
///
/// It is not `Copy`, so that no admission is lost in a copy. The wrong guard does not compile:
///
/// ```compile_fail
/// # fn write(held: lockcore::Held<String, uuid::Uuid>, guard: &mut lockcore::FenceGuard) {
/// guard.admit_exclusive(held.shared_fence("tariff").unwrap());
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct FenceGuard {
    exclusive: u64,
    /// Never lower than `exclusive`.
    any: u64,
}

impl FenceGuard {
    /// Creates a guard that has seen nothing.
    pub const fn new() -> Self {
        FenceGuard::restore(0, 0)
    }

    /// Creates a guard that has seen these numbers, as they were stored before.
    pub const fn restore(highest_exclusive: u64, highest: u64) -> Self {
        // A stored exclusive number was seen too, whatever the other says.
        let any = if highest < highest_exclusive { highest_exclusive } else { highest };
        FenceGuard { exclusive: highest_exclusive, any }
    }

    /// Returns the highest exclusive number seen, to be stored beside the resource.
    pub fn highest_exclusive(&self) -> u64 {
        self.exclusive
    }

    /// Returns the highest number seen of any holder, to be stored beside the resource.
    pub fn highest(&self) -> u64 {
        self.any
    }

    /// Admits the write of an exclusive holder and remembers its fence.
    ///
    /// # Errors
    /// [`StaleFence`] if a later holder, of any mode, was here before.
    pub fn admit_exclusive(&mut self, fence: ExclusiveFence) -> Result<(), StaleFence> {
        check(fence.0, self.any)?;
        (self.exclusive, self.any) = (fence.0, fence.0);
        Ok(())
    }

    /// Admits the write of a shared or slot holder and remembers its fence.
    ///
    /// # Errors
    /// [`StaleFence`] if a later exclusive holder was here before.
    pub fn admit_shared(&mut self, fence: SharedFence) -> Result<(), StaleFence> {
        check(fence.0, self.exclusive)?;
        self.any = self.any.max(fence.0);
        Ok(())
    }
}

fn check(fence: u64, highest: u64) -> Result<(), StaleFence> {
    if fence < highest { Err(StaleFence { fence, highest }) } else { Ok(()) }
}

/// The refusal of a write that came from a former holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaleFence {
    /// The fence of the write.
    pub fence: u64,
    /// The fence of the later holder that was here before.
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
        assert_eq!(guard.admit_exclusive(ExclusiveFence(8)), Err(StaleFence { fence: 8, highest: 9 }));
        assert!(guard.admit_exclusive(ExclusiveFence(10)).is_ok());
        assert_eq!(guard.admit_shared(SharedFence(9)), Err(StaleFence { fence: 9, highest: 10 }));
        assert!(FenceGuard::restore(9, 9).admit_exclusive(ExclusiveFence(8)).is_err());
    }

    #[test]
    fn a_restored_guard_refuses_what_the_stored_one_did() {
        let mut guard = FenceGuard::new();
        guard.admit_exclusive(ExclusiveFence(5)).expect("the first");
        guard.admit_shared(SharedFence(9)).expect("a later one");
        let mut restored = FenceGuard::restore(guard.highest_exclusive(), guard.highest());
        assert_eq!(restored, guard);
        assert!(restored.admit_exclusive(ExclusiveFence(5)).is_err());
        assert!(restored.admit_shared(SharedFence(4)).is_err());
        assert!(restored.admit_shared(SharedFence(6)).is_ok());
        let mut only_exclusive = FenceGuard::restore(5, 0);
        assert!(only_exclusive.admit_exclusive(ExclusiveFence(4)).is_err());
    }
}
