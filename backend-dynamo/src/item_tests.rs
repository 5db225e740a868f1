//! Items are written so that they are read again, by us and by others.

use super::*;

const NOW: ServiceTime = ServiceTime { lo: 1_795_000_000_500_000, hi: 1_795_000_001_500_000 };

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

/// The item that stands there once the row was written.
fn item(row: &Row) -> Item {
    let rev = [("rev", Some(value::number(5)))];
    named(row.attributes(NOW).into_iter().chain(rev))
}

/// Returns attributes that are set as an item has them.
pub(super) fn named(set: impl Iterator<Item = (&'static str, Option<AttributeValue>)>) -> Item {
    let names = HashMap::from([("#c", "contextId"), ("#t", "created"), ("#e", "expires")]);
    set.filter_map(|(name, value)| Some((names.get(name).copied().unwrap_or(name).to_owned(), value?)))
        .collect()
}

fn again(row: &Row) -> Row {
    let mut read = Row::read(item(row), &Names::default()).expect("what was written can be read");
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
        tombstones: vec![(u64::MAX, NOW.hi)],
        frozen: true,
        breaks: vec![broken],
        ..Row::default()
    };
    assert_eq!(again(&row), row);
    let alone = Row { holders: vec![("a".to_owned(), entry(Mode::Exclusive, NOW.hi))], ..Row::default() };
    assert_eq!(again(&alone), alone);
}

#[test]
fn others_see_whole_seconds_rounded_up_and_the_holder() {
    let alone = Row { holders: vec![("a".to_owned(), entry(Mode::Exclusive, NOW.hi))], ..Row::default() };
    let seen = item(&alone);
    assert_eq!(text(&seen, "contextId").as_deref(), Some("a"));
    assert_eq!(text(&seen, "created").as_deref(), Some("1795000000"));
    assert_eq!(text(&seen, "expires").as_deref(), Some("1795000002"));
    let shared = Row { holders: vec![("a".to_owned(), entry(Mode::Shared, NOW.hi))], ..Row::default() };
    assert_eq!(text(&item(&shared), "contextId").as_deref(), Some(MANY));
}

#[test]
fn a_free_item_is_free_for_others_and_collected() {
    let item = item(&Row { fence: 7, ..Row::default() });
    assert_eq!(text(&item, "contextId"), None);
    assert_eq!(text(&item, "expires").as_deref(), Some("1794913600"), "a day ago");
    assert_eq!(text(&item, "fence").as_deref(), Some("7"));
}

#[test]
fn a_free_item_is_not_collected_while_attempts_are_to_be_refused() {
    let tombstones = vec![(1, NOW.hi + 70 * SECOND), (2, NOW.hi + 30 * SECOND)];
    let free = item(&Row { tombstones: tombstones.clone(), ..Row::default() });
    assert_eq!(text(&free, "contextId"), None);
    assert_eq!(text(&free, "expires").as_deref(), Some("0"), "free for others, and too old to be collected");
    for (until, expires) in [(NOW.hi + SECOND, "1795000072"), (NOW.hi + 100 * SECOND, "1795000102")] {
        let holders = vec![("a".to_owned(), entry(Mode::Exclusive, until))];
        let held = item(&Row { tombstones: tombstones.clone(), holders, ..Row::default() });
        assert_eq!(text(&held, "expires").as_deref(), Some(expires), "the later end");
    }
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
    assert!(
        matches!(Row::read(bad, &Names::default()), Err(StoreError::Unreadable { item, .. }) if item.0 == "key")
    );
}

#[test]
fn whatever_others_wrote_is_read_or_refused() {
    let ours = Row {
        rev: Some(4),
        fence: 42,
        holders: vec![("ours".to_owned(), entry(Mode::Slots { permits: 2, limit: 3 }, NOW.hi + 1))],
        tombstones: vec![(7, NOW.hi + 2)],
        ..Row::default()
    };
    let item = format!("{:?}", item(&ours).keys().collect::<Vec<_>>());
    assert!(item.contains("holders") && item.contains("marks"), "{item}");
    // An item as text: the kind of each attribute, its name and its content, one a line.
    let example = "S contextId ours\nN created 1795000000\nN expires 1795000031\nN rev 4\nN fence 42\nB frozen 1\n\
                   M holders ours\nS is slots 18446744073709551615 1795000000500000 worker\nN limit 3\nS permits 0,1\n\
                   N lease 30000000\nN ends 1795000001500001\nU\nU\nM marks\nN x7 1795000001500002\nU\nL breaks\n";
    lockcore_conformance::hostile::feed(
        &[example, "S contextId another\nN expires 1e19\nN created -5.5\n"],
        |text| {
            drop(Row::read(typed(&mut text.lines()), &Names::default()));
        },
    );
}

/// Reads attributes up to the line that ends a map.
fn typed<'l>(lines: &mut impl Iterator<Item = &'l str>) -> Item {
    let mut item = Item::new();
    while let Some(line) = lines.next() {
        let mut words = line.splitn(3, ' ');
        let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let content = words.next().unwrap_or_default().to_owned();
        let value = match kind {
            "U" => break,
            "N" => AttributeValue::N(content),
            "B" => AttributeValue::Bool(content == "1"),
            "L" => AttributeValue::L(vec![
                AttributeValue::M(typed(&mut std::iter::empty())),
                AttributeValue::S(content),
            ]),
            "M" if content.is_empty() => AttributeValue::M(typed(lines)),
            "M" => AttributeValue::M(HashMap::from([(content, AttributeValue::M(typed(lines)))])),
            _ => AttributeValue::S(content),
        };
        item.insert(name.to_owned(), value);
    }
    item
}
