# A unit test for what admin::a_watcher_sees_each_change found once.
sed -i '/^    fn look(/e cat watch_test.rs' lockcore/src/watch.rs
