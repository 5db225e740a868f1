# The commit's tests need a later commit.
git checkout --quiet HEAD -- tests
