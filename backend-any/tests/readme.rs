//! The README's table of backends is the one that the capabilities give.
#![cfg(all(
    feature = "memory",
    feature = "sqlite",
    feature = "dynamodb",
    feature = "etcd",
    feature = "postgres",
    feature = "redis",
    feature = "s3",
    feature = "share"
))]

use std::{env, fs, path::Path};

const START: &str = "<!-- backends:start -->\n";
const END: &str = "<!-- backends:end -->";

#[test]
fn the_table_of_backends_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(&file).expect("there is a README");
    let (before, rest) = readme.split_once(START).expect("the README has the start mark");
    let (table, after) = rest.split_once(END).expect("the README has the end mark");
    let current = lockcore_any::markdown_table();
    if env::var_os("LOCKCORE_BLESS").is_some() {
        fs::write(&file, format!("{before}{START}{current}{END}{after}")).expect("the README can be written");
    } else {
        assert_eq!(table, current, "run this test with LOCKCORE_BLESS=1 to rewrite the table in README.md");
    }
}
