#!/usr/bin/env bash
# Checks and tests everything: gets what is missing (a C compiler for the bundled SQLite, test servers), then runs
# format, lints, docs, all tests, the doc examples and the model checks. Changes nothing in the checkout but target/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Many tests panic on purpose, of which one line is enough.
export RUST_BACKTRACE=0

step() { printf '\n== %s\n' "$*"; }

need() { # COMMAND PACKAGE
    command -v "$1" >/dev/null && return
    step "installing $2"
    if [ "$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq "$2" >/dev/null
    else echo "test.sh: $1 is missing: install the package $2" >&2; exit 1; fi
}

need cc build-essential
step "test servers"
bash tests/servers/ensure.sh

step "format"
cargo fmt --all --check
step "lints"
cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
step "docs"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --all-features --no-deps --locked --quiet
step "tests"
cargo test --workspace --all-features --locked --no-fail-fast
step "DynamoDB in process"
cargo test --manifest-path backend-dynamo/in_process/Cargo.toml --locked --target-dir target/in-process
step "the core without optional features"
cargo check -p lockcore -p lockcore-any -p lockctl --no-default-features --locked
step "model checks of the memory backend"
RUSTFLAGS="--cfg shuttle" cargo test -p lockcore-memory --test shuttle --release --locked --target-dir target/shuttle
