#!/usr/bin/env bash
# Tests the project. Gets what is missing (a C compiler, test servers) and changes nothing in the checkout but target/.
#
#   ./test.sh [FILTER]           the tests, on real servers: in minutes; with a filter those that have it in their names
#   ./test.sh all                all tests, each feature alone, what must not compile, DynamoDB in process, and
#                                the packages
#   ./test.sh square             every check of the suite on every store (tests/src/instances.rs says which run otherwise)
#   ./test.sh check              format, lints, comments, docs with their examples, and spelling
#   ./test.sh stop               ends the test servers that a run leaves for the next one, for ten minutes
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Many tests panic on purpose: one line of each is enough.
export RUST_BACKTRACE=0

target=${CARGO_TARGET_DIR:-target}
workspace=(--workspace --exclude lockcore-benches --all-features --locked)

step() { printf '\n== %s (%d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    step "installing $2"
    if [ "$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq "$2" >/dev/null
    else echo "test.sh: $1 is missing: install the package $2" >&2; exit 1; fi
}

check() {
    step "format"
    cargo fmt --all --check
    step "lints"
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
    step "comments"
    bash tests/comments.sh
    step "docs"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked --quiet
    step "doc examples"
    cargo test "${workspace[@]}" --quiet --doc
    step "spelling"
    PATH=$PATH:$target/tools/bin
    # Its package has the program; to build it takes minutes.
    command -v typos >/dev/null || { python3 -m venv "$target/tools" && "$target/tools/bin/pip" -q install 'typos==1.*'; }
    typos
}

tests() { # ARGUMENT-OF-RUN-TESTS...
    need cc build-essential
    # The servers come while the compiler runs.
    bash tests/servers/ensure.sh >"$target/servers.log" 2>&1 &
    local servers=$!
    step "building the tests"
    cargo test "${workspace[@]}" --no-run --message-format json-render-diagnostics >"$target/tests.json"
    step "test servers"
    wait "$servers" || { cat "$target/servers.log"; exit 1; }
    cat "$target/servers.log"
    step "tests"
    "$target/debug/run-tests" "$@" <"$target/tests.json"
}

rest() {
    command -v cargo-hack >/dev/null || { step "installing cargo-hack"; cargo install --locked --quiet cargo-hack; }
    step "each feature alone"
    local featureless=() package
    for package in judge torture chaos simulation; do featureless+=(--exclude "lockcore-$package"); done
    # What is on by default is one feature at most there, or none. The lints and the tests have all features.
    cargo hack check --workspace --exclude lockcore-benches --exclude lockcore-any --exclude lockctl "${featureless[@]}" \
        --each-feature --exclude-features default --exclude-all-features --locked --quiet
    # These refuse to be built without a backend.
    cargo hack check -p lockcore-any -p lockctl --each-feature --exclude-no-default-features --exclude-all-features \
        --locked --quiet
    step "what must not compile"
    cargo test -p lockcore --test ui --all-features --locked
    step "DynamoDB in process"
    cargo test --manifest-path backend-dynamo/in_process/Cargo.toml --target-dir target --locked
    step "packages"
    packages=(--workspace --exclude lockcore-benches --exclude archive-ingest --exclude lockcore-recipes)
    # They are not published.
    packages+=(--exclude lockcore-chaos --exclude lockcore-simulation)
    cargo package "${packages[@]}" --locked --no-verify --allow-dirty --quiet
    # Built from what is packaged: nothing outside of the folder is needed.
    cargo package -p lockcore --locked --allow-dirty --quiet
}

mkdir -p "$target"
case ${1:-} in
    check) check ;;
    stop) "$target/debug/run-tests" stop ;;
    square) LOCKCORE_TEST_SQUARE=1 tests --all ;;
    all) tests --all; rest ;;
    "") tests ;;
    -*) sed -n '2,9s/^# \?//p' "$0" >&2; exit 2 ;;
    *) tests "$@" ;;
esac
