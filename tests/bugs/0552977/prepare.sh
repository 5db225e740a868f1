# The other tests of the commit use what it added; this one needs a way to make a caller.
git reset --quiet --hard
git checkout --quiet 0552977 -- backend-sql/tests/hostile_rows.rs
grep -q 'pub fn new(dao' tests/src/store.rs || cat >>tests/src/store.rs <<'RUST'

impl<D> Caller<D> {
    /// A caller with a fresh context and this lease.
    pub fn new(dao: Arc<D>, lease: Duration) -> Self {
        Caller { dao, context: Uuid::fresh(), lease, owner: Owner::default(), nested: false }
    }
}
RUST
