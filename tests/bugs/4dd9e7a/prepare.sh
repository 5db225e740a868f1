# The next holder stays until the former command would have written again.
sed -i 's/ > next";$/ > next; sleep 0.2";/' lockctl/tests/e2e/watchdog.rs
