# A unit test for what admin::a_watcher_sees_each_change found once.
cat watch_tests.rs >>lockcore/src/watch.rs
