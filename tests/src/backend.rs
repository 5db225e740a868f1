//! What the suite has to know of a backend: how to make a store, and how to open the same one again.

use lockcore::LockDao;
use uuid::Uuid;

/// A backend under test.
pub trait Backend: Send + Sync + 'static {
    /// Its implementation of the trait.
    type Dao: LockDao<String, Uuid>;

    /// Keeps alive whatever the store needs: a temporary folder, a server. Dropped after the DAO.
    type Guard: Send + Sync + 'static;

    /// Makes an empty store, or a fresh namespace in one; another at each call.
    fn build(&self) -> impl Future<Output = (Self::Guard, Self::Dao)> + Send;

    /// Opens the store and namespace of `guard` once more, as another process would; `None` where nothing
    /// outlives the DAO, which must then not declare `shared_store`.
    fn reopen(&self, guard: &Self::Guard) -> impl Future<Output = Option<Self::Dao>> + Send;
}
