#!/usr/bin/env bash
# Checks and tests the project. Gets what is missing (a C compiler, cargo-nextest, test servers) and changes nothing in the
# checkout but target/.
#
#   ./test.sh        format, lints, docs and tests, on real servers: in minutes
#   ./test.sh all    the same with all tests (.config/nextest.toml says which the other leaves out), and then each feature
#                    alone, DynamoDB in process, the model checks of the memory backend, and the packages
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Many tests panic on purpose: one line of each is enough.
export RUST_BACKTRACE=0

case ${1:-} in
    "") profile=default ;;
    all) profile=all ;;
    *) echo "usage: ./test.sh [all]" >&2; exit 2 ;;
esac

step() { printf '\n== %s (%d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)); }

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    step "installing $2"
    if [ "$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq "$2" >/dev/null
    else echo "test.sh: $1 is missing: install the package $2" >&2; exit 1; fi
}

nextest() { # CARGO-NEXTEST-ARGUMENTS...: skips the tests of servers that cannot be had
    cargo nextest run --locked "$@" ${LOCKCORE_TEST_SKIP:+--filterset "$LOCKCORE_TEST_SKIP"}
}

# With the test servers running: `with-servers` calls this script again.
if [ "${LOCKCORE_TEST_SERVERS:-}" = running ]; then
    nextest --workspace --all-features --profile "$profile"
    exit
fi

step "format"
cargo fmt --all --check
need cc build-essential
command -v cargo-nextest >/dev/null || { step "installing cargo-nextest"; cargo install --locked --quiet cargo-nextest; }
step "test servers"
bash tests/servers/ensure.sh
step "lints"
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
step "docs"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked --quiet
step "building the tests"
cargo test --workspace --all-features --locked --quiet --no-run
step "tests"
LOCKCORE_TEST_SERVERS=running "${CARGO_TARGET_DIR:-target}/debug/with-servers" "$PWD/test.sh" "$@"
step "doc examples"
cargo test --workspace --all-features --locked --quiet --doc
[ "$profile" = all ] || exit 0

command -v cargo-hack >/dev/null || { step "installing cargo-hack"; cargo install --locked --quiet cargo-hack; }
step "each feature alone"
cargo hack check --workspace --exclude lockcore-benches --exclude lockcore-any --exclude lockctl --each-feature --locked --quiet
# These refuse to be built without a backend.
cargo hack check -p lockcore-any -p lockctl --each-feature --exclude-no-default-features --locked --quiet
step "DynamoDB in process"
nextest --manifest-path backend-dynamo/in_process/Cargo.toml --target-dir target --test-threads 16
step "model checks of the memory backend"
RUSTFLAGS="--cfg shuttle" cargo test -p lockcore-memory --test shuttle --release --locked --target-dir target/shuttle
step "packages"
packages=(--workspace --exclude lockcore-benches --exclude archive-ingest)
cargo package "${packages[@]}" --locked --no-verify --allow-dirty --quiet
# Built from what is packaged: nothing outside of the folder is needed.
cargo package -p lockcore --locked --allow-dirty --quiet
