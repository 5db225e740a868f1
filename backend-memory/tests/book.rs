//! The page of the book on testing shows what the examples hold, which is compiled and run.

use std::{fs, path::Path};

#[test]
fn the_page_on_testing_shows_the_examples() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(here.join(file)).expect(file);
    let examples = read("examples/unit_test.rs") + &read("examples/outage.rs");
    let page = read("../docs/src/testing.md");
    let shown: Vec<_> =
        page.split("```rust,ignore\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!shown.is_empty());
    // Leaving out what stands between two blank lines is no mistake.
    for part in shown.iter().flat_map(|shown| shown.split("\n\n")) {
        assert!(examples.contains(part.trim_end()), "it is in none of the examples:\n{part}");
    }
}
