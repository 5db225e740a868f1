//! Items are written so that they are read again, by us and by others.

use super::*;

const NOW: Now = Now { lo: 1_795_000_000_500_000, hi: 1_795_000_001_500_000 };

fn entry(mode: Mode, until: u64) -> Entry {
    let permits = (0..mode.permits()).collect();
    let owner = Owner::from("worker \"7\"");
    Entry {
        mode,
        permits,
        fence: 42,
        attempt: u64::MAX,
        lease: 30_000_000,
        until,
        since: NOW.lo,
        owner,
        broken: false,
        prior: None,
    }
}

fn again(row: &Row) -> Row {
    let item = row.write("key", &Names::default(), 5, NOW);
    let mut read = Row::read(item, &Names::default()).expect("what was written can be read");
    assert_eq!(read.rev, Some(5));
    (read.rev, read.seen, read.has_slots) = (row.rev, Seen::default(), row.has_slots);
    read
}

fn text(item: &Item, name: &str) -> Option<String> {
    item.get(name).and_then(|value| value.as_s().or(value.as_n()).ok().cloned())
}

#[test]
fn everything_comes_back() {
    let mut held = entry(Mode::Slots { permits: 3, limit: 9 }, NOW.hi + 1);
    held.broken = true;
    held.prior = Some(Box::new(entry(Mode::Shared, NOW.hi)));
    let broken = Break { context: "c".to_owned(), fence: 3, by: "an admin".into(), at: 17, now: true };
    let row = Row {
        fence: u64::MAX,
        holders: vec![("a".to_owned(), held), ("b".to_owned(), entry(Mode::Shared, NOW.hi))],
        marks: vec![(u64::MAX, NOW.hi)],
        frozen: true,
        breaks: vec![broken],
        ..Row::default()
    };
    assert_eq!(again(&row), row);
    let alone = Row { holders: vec![("a".to_owned(), entry(Mode::Exclusive, NOW.hi))], ..Row::default() };
    assert_eq!(again(&alone), alone);
}

#[test]
fn others_see_whole_seconds_rounded_up_and_who_holds() {
    let alone = Row { holders: vec![("a".to_owned(), entry(Mode::Exclusive, NOW.hi))], ..Row::default() };
    let item = alone.write("key", &Names::default(), 5, NOW);
    assert_eq!(text(&item, "contextId").as_deref(), Some("a"));
    assert_eq!(text(&item, "created").as_deref(), Some("1795000000"));
    assert_eq!(text(&item, "expires").as_deref(), Some("1795000002"));
    let shared = Row { holders: vec![("a".to_owned(), entry(Mode::Shared, NOW.hi))], ..Row::default() };
    assert_eq!(text(&shared.write("key", &Names::default(), 5, NOW), "contextId").as_deref(), Some(MANY));
}

#[test]
fn a_free_item_is_free_for_others_and_collected() {
    let item = Row { fence: 7, ..Row::default() }.write("key", &Names::default(), 5, NOW);
    assert_eq!(text(&item, "contextId"), None);
    assert_eq!(text(&item, "expires").as_deref(), Some("1794913600"), "a day ago");
    assert_eq!(text(&item, "fence").as_deref(), Some("7"));
}

#[test]
fn what_others_wrote_is_theirs() {
    let item = |expires: &str| {
        Item::from([
            ("id".to_owned(), AttributeValue::S("key".to_owned())),
            ("contextId".to_owned(), AttributeValue::S("theirs".to_owned())),
            ("created".to_owned(), AttributeValue::N("1795000000".to_owned())),
            ("expires".to_owned(), AttributeValue::N(expires.to_owned())),
        ])
    };
    for (expires, until) in [
        ("1795000010", 1_795_000_010),
        ("1795000010.5", 1_795_000_010),
        ("1.79500001E9", 1_795_000_010),
        ("-1", 0),
    ] {
        let row = Row::read(item(expires), &Names::default()).expect("a number");
        let foreign = row.foreign.expect("theirs");
        assert_eq!((foreign.context.as_str(), foreign.until), ("theirs", Some(until * SECOND)), "{expires}");
    }
    let mut bad = item("0");
    bad.insert("expires".to_owned(), AttributeValue::S("tomorrow".to_owned()));
    assert!(matches!(Row::read(bad, &Names::default()), Err(StoreError::Corrupt(_))));
}
