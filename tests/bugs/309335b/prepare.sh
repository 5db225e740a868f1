# What sizes::what_is_freed_is_handed_over found by luck.
tests=backend-sql/tests/postgres_server/messages.rs name=an_overtaken_notification_is_waited_for
cat test.rs >>$tests
sed -i "s/^    vec!\[$/&\n        test(\"$name\", $name),/" $tests
