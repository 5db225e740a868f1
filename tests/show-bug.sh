#!/usr/bin/env bash
# Shows a bug of docs/src/reliability.md: takes the repair back, but not its tests, and runs the test that found it.
#
# Usage: tests/show-bug.sh COMMIT PACKAGE TEST
# For example: tests/show-bug.sh 469e4d7 archive-ingest an_archive_inside_the_source_is_refused
# Ends with 0 if the test fails, as it should, and with 1 if it passes. A build that fails ends with 2.
set -euo pipefail
commit=$1 package=$2 test=$3
folder=$(mktemp -d)
trap 'git worktree remove --force "$folder"' EXIT
git worktree add --quiet --detach "$folder" "$commit"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/show-bug}
cd "$folder"
git diff --name-only --diff-filter=MD "$commit^" "$commit" -- '*.rs' '*.lua' '*.sql' |
  grep -vE '(^|/)tests/|tests?\.rs$' | xargs git checkout --quiet "$commit^" --
cargo test --quiet --package "$package" --all-features --no-run || exit 2
if cargo test --quiet --package "$package" --all-features -- "$test"; then
  echo "$test passes without the repair"
  exit 1
fi
echo "$test fails without the repair"
