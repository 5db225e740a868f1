#!/usr/bin/env bash
# Shows a bug that docs/src/reliability.md lists: runs the tests that came with its repair on the code of the commit before.
#
#   tests/show_bug.sh COMMIT CARGO-TEST-ARGUMENTS
#
# Succeeds if the tests can be built and fail. What needs servers is to be run by `with-servers`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
commit=$(git rev-parse "$1") bugs=$PWD/target/bugs
shift

git worktree remove --force "$bugs/tree" 2>/dev/null || true
git worktree prune
git worktree add --quiet --detach "$bugs/tree" "$commit"
cd "$bugs/tree"

tests_of() { sed -n '/^#\[cfg(test)\]$/,$p' "$1"; }
git diff --name-only --no-renames "$commit~1" "$commit" | while read -r file; do
    case $file in
        tests/* | */tests/* | *tests.rs | *.md | *Cargo.*) continue ;;
    esac
    tests=$([ -e "$file" ] && tests_of "$file" || true)
    if ! git show "$commit~1:$file" >"$bugs/before" 2>/dev/null; then
        rm "$file"
    elif [ -n "$tests" ]; then
        { sed '/^#\[cfg(test)\]$/,$d' "$bugs/before"; echo "$tests"; } >"$file"
    else
        cp "$bugs/before" "$file"
    fi
done

export CARGO_TARGET_DIR=$bugs/build RUST_BACKTRACE=0
cargo test --no-run "$@"
if cargo test "$@"; then
    echo "show_bug.sh: the tests pass on the code before $commit" >&2
    exit 1
fi
