# What waiters_look_if_they_are_not_told found by luck.
tests=backend-sql/tests/pgbouncer.rs name=listening_is_seldom_tried_where_it_cannot_work
cat test.rs >>$tests
sed -i "s/^    servers::run(\[$/&\n        trial(Kind::Postgres, \"$name\", $name),/" $tests
