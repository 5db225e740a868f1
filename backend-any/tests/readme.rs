//! The tables of backends, the README's and the book's, are the ones that the capabilities give.
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

/// What a newcomer chooses by; the book has all rows.
const FIRST_ROWS: [&str; 5] = [
    "URL",
    "excludes other processes",
    "waiters in order of arrival",
    "waiters are notified, no polling",
    "a dead process's locks are free at once",
];

#[test]
fn the_tables_of_backends_are_current() {
    let whole = lockcore_any::markdown_table();
    let (heading, rows) = whole.split_at(whole.match_indices('\n').nth(1).expect("two lines").0 + 1);
    let mut first = heading.to_owned();
    for name in FIRST_ROWS {
        let start = format!("| {name} | ");
        let row = rows.split_inclusive('\n').find(|row| row.starts_with(&start));
        first += row.unwrap_or_else(|| panic!("no row {name:?}"));
    }
    is_current("../README.md", &first);
    is_current("../docs/src/choosing.md", &whole);
}

fn is_current(page: &str, current: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
    let text = fs::read_to_string(&file).expect("there is the page");
    let (before, rest) = text.split_once(START).expect("the page has the start mark");
    let (table, after) = rest.split_once(END).expect("the page has the end mark");
    if env::var_os("LOCKCORE_BLESS").is_some() {
        fs::write(&file, format!("{before}{START}{current}{END}{after}")).expect("the page can be written");
    } else {
        assert_eq!(table, current, "run this test with LOCKCORE_BLESS=1 to rewrite the table in {page}");
    }
}
