#!/usr/bin/env bash
# Lists the tests that exist at a commit and no longer in this checkout, and fails if there are any:
#   tests/compare-checks.sh COMMIT
# Builds the tests of both; needs cargo-nextest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
base=${1:?usage: tests/compare-checks.sh COMMIT}
work=$(mktemp -d)
trap 'git worktree remove --force "$work/base" 2>/dev/null; rm -rf "$work"' EXIT
list() { cargo nextest list --workspace --all-features --locked --ignore-default-filter --message-format oneline | sort; }
git worktree add --quiet --detach "$work/base" "$base"
(cd "$work/base" && CARGO_TARGET_DIR="$OLDPWD/target" list) >"$work/before"
list >"$work/after"
echo "$(wc -l <"$work/before") tests at $base, $(wc -l <"$work/after") here; new: $(comm -13 "$work/before" "$work/after" | wc -l)"
gone=$(comm -23 "$work/before" "$work/after")
[ -z "$gone" ] || { printf 'gone:\n%s\n' "$gone"; exit 1; }
