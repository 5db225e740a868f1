# The tests are inside of the library, and one of them makes a heartbeat by itself.
git checkout --quiet becf60e -- lockcore-cell/src/cases_tests.rs lockcore-cell/src/cases_tests
sed -i 's/^    store: Arc<Store/    pub(crate) store: Arc<Store/' lockcore-cell/src/dao.rs
