# The commit's test is beside the code, and may end by using up the memory.
cat reply_tests.rs >>backend-redis/src/reply.rs
