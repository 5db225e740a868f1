#!/usr/bin/env bash
# Lists the tests that exist at a commit and no longer in this checkout, and fails if there are any:
#   tests/compare-checks.sh COMMIT
# Builds the tests of both. A test counts by its own name: files and stores in front of it may have changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
base=${1:?usage: tests/compare-checks.sh COMMIT}
work=$(mktemp -d)
trap 'git worktree remove --force "$work/base" 2>/dev/null; rm -rf "$work"' EXIT
list() { # in the checkout of the current folder
    local program
    cargo test --workspace --exclude lockcore-benches --all-features --locked --no-run --message-format json 2>/dev/null \
        | grep '"test":true' | grep -o '"executable":"[^"]*"' | cut -d'"' -f4 \
        | while read -r program; do "$program" --list; done \
        | sed -n 's/^\(.*::\)\?\(.*\): test$/\2/p' | sort -u
}
git worktree add --quiet --detach "$work/base" "$base"
(cd "$work/base" && CARGO_TARGET_DIR="$OLDPWD/target" list) >"$work/before"
list >"$work/after"
echo "$(wc -l <"$work/before") tests at $base, $(wc -l <"$work/after") here; new: $(comm -13 "$work/before" "$work/after" | wc -l)"
gone=$(comm -23 "$work/before" "$work/after")
[ -z "$gone" ] || { printf 'gone:\n%s\n' "$gone"; exit 1; }
