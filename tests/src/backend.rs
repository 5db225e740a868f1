//! What the suite has to know of a backend: how to make a store, and how to open the same one again.

use std::time::Duration;

use lockcore::LockDao;
use uuid::Uuid;

/// A backend under test.
pub trait Backend: Send + Sync + 'static {
    /// Its implementation of the trait.
    type Dao: LockDao<String, Uuid>;

    /// Whether the store's time is that of tokio, and no call of it leaves the runtime: checks that can then run under tokio's
    /// paused clock, in which waiting takes no time.
    const VIRTUAL_TIME: bool = false;

    /// Keeps alive what the store needs: a temporary folder, a server. Dropped after the DAO.
    type Guard: Send + Sync + 'static;

    /// Makes an empty store, or a fresh namespace in one; another at each call.
    fn build(&self) -> impl Future<Output = (Self::Guard, Self::Dao)> + Send;

    /// Opens the store and namespace of `guard` once more, as another process would; `None` where nothing
    /// outlives the DAO, which must then not declare `shared_store`.
    fn reopen(&self, guard: &Self::Guard) -> impl Future<Output = Option<Self::Dao>> + Send;

    /// Opens them once more by a clock that is ahead by so much: what is locked there has been locked in the future once
    /// it is looked at by the right clock, as after one that was set back. `None`, unless this is overridden, where the
    /// backend's clock cannot be made to lie.
    fn reopen_ahead(
        &self,
        _guard: &Self::Guard,
        _ahead: Duration,
    ) -> impl Future<Output = Option<Self::Dao>> + Send {
        async { None }
    }

    /// Sets the store's clock for the namespace of `guard` forward by so much, for every DAO that is open on it: leases end, and
    /// nothing else of this process gets older. `false`, unless this is overridden, where the clock cannot be set: checks wait
    /// for leases in real time then, or virtual time.
    fn advance(&self, _guard: &Self::Guard, _by: Duration) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Writes something in the place of the lock of `id`, which is held exclusively, that the backend cannot read, as another program
    /// may; `way` says which, from 0 on. `false` if there are no more ways: unless this is overridden there are none.
    fn spoil(&self, _guard: &Self::Guard, _id: &str, _way: usize) -> impl Future<Output = bool> + Send {
        async { false }
    }
}
