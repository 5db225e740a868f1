//! The pages: every link leads to a file or a heading that exists, and the book's summary has every page.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use lockcore_conformance::servers::Trial;
use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// The tests of this file.
pub(crate) fn tests() -> Vec<Trial> {
    lockcore_conformance::tests![
        "docs";
        every_link_leads_somewhere,
        addresses_of_the_repository_name_files_that_exist,
        what_pages_include_exists,
        pages_show_the_code_that_is_tested,
        the_summary_has_every_page,
    ]
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// All pages: those of the repository's root, and of the book.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![root().join("docs/src")];
    let mut pages = markdown(&root());
    while let Some(folder) = folders.pop() {
        pages.extend(markdown(&folder));
        let entries = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        folders.extend(entries.filter(|path| path.is_dir()));
    }
    pages
}

fn markdown(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

fn links(text: &str) -> Vec<String> {
    let link = |event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url.to_string()),
        _ => None,
    };
    Parser::new(text).filter_map(link).collect()
}

/// The anchors that a page's headings get.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut anchors, mut heading) = (BTreeSet::new(), None::<String>);
    for event in Parser::new(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::End(TagEnd::Heading(_)), Some(title)) => {
                let kept = title.to_lowercase().replace(' ', "-");
                anchors
                    .insert(kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect());
                heading = None;
            }
            (Event::Text(text) | Event::Code(text), Some(title)) => title.push_str(&text),
            _ => {}
        }
    }
    anchors
}

fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    let mut checked = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file.is_empty() {
                true => page.clone(),
                false => page.parent().expect("a folder").join(file),
            };
            let is_there = match anchor.is_empty() {
                true => target.exists(),
                false => fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor)),
            };
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(broken, [""; 0]);
    assert!(checked > 30, "{checked} links");
}

/// Links into the repository from the book name its address, and lead to files that exist.
fn addresses_of_the_repository_name_files_that_exist() {
    const MAIN: &str = "https://github.com/lockcore/lockcore/blob/main/";
    for page in pages() {
        for link in links(&fs::read_to_string(&page).expect("text")) {
            if let Some(file) = link.strip_prefix(MAIN) {
                assert!(root().join(file).exists(), "{}: {link}", page.display());
            }
        }
    }
}

/// The book shows a file of the repository by including it.
fn what_pages_include_exists() {
    let mut included = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        for file in text.split("{{#include ").skip(1).filter_map(|rest| rest.split("}}").next()) {
            assert!(page.parent().expect("a folder").join(file).exists(), "{}: {file}", page.display());
            included += 1;
        }
    }
    assert!(included > 0);
}

/// A page names the file whose part between the marks it shows: as text, so that it can be read where nothing is included.
fn pages_show_the_code_that_is_tested() {
    const FROM: &str = "<!-- from ";
    const BLOCK: &str = " -->\n```rust,ignore\n";
    let mut shown = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).expect("text");
        let mut parts = text.split(FROM);
        let mut current = parts.next().expect("one at least").to_owned();
        for part in parts {
            let (file, rest) = part.split_once(BLOCK).expect("a block of Rust follows");
            let (_, rest) = rest.split_once("```\n").expect("the block ends");
            let code =
                fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            let (_, code) = code.split_once("// ANCHOR: recipe\n").expect("its part begins");
            let (code, _) = code.split_once("// ANCHOR_END: recipe\n").expect("its part ends");
            current += &format!("{FROM}{file}{BLOCK}{code}```\n{rest}");
            shown += 1;
        }
        if env::var_os("LOCKCORE_BLESS").is_some() {
            fs::write(&page, current).expect("the page can be written");
        } else {
            assert_eq!(text, current, "run this test with LOCKCORE_BLESS=1 to rewrite {}", page.display());
        }
    }
    assert!(shown > 2, "{shown} blocks");
}

fn the_summary_has_every_page() {
    let book = root().join("docs/src");
    let summary = fs::read_to_string(book.join("SUMMARY.md")).expect("a summary");
    let listed: BTreeSet<_> = links(&summary).into_iter().map(|link| book.join(link)).collect();
    let pages = pages().into_iter().filter(|page| page.starts_with(&book) && !page.ends_with("SUMMARY.md"));
    assert_eq!(pages.collect::<BTreeSet<_>>(), listed);
}
