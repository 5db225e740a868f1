//! What the writes of the engine say: rare states of its table.

use std::collections::BTreeSet;

use serde_json::Value;

/// Returns the rare states that a write of the table shows, by the content before and after it.
pub(super) fn states(before: &[u8], after: &[u8]) -> Vec<&'static str> {
    let read = |content: &[u8]| serde_json::from_slice::<Value>(content).unwrap_or_default();
    let (before, after) = (read(before), read(after));
    let ids = || after["ids"].as_object().into_iter().flatten();
    let held = || ids().flat_map(|(_, id)| id["held"].as_array().into_iter().flatten());
    let has = |field: &str| held().any(|held| !held[field].is_null());
    let (grants, places) = (&after["grants"], &after["places"]);
    let moves = |grant: (&String, &Value)| {
        let was = &before["grants"][grant.0]["session"];
        !was.is_null() && *was != grant.1["session"]
    };
    let granted = |context: &Value| {
        let mut grants = grants.as_object().into_iter().flatten();
        grants.any(|(_, grant)| grant["context"] == *context)
    };
    // A caller that gives up does so by its own process.
    let by_another = |place: &Value| place["session"] != after["stamp"]["session"];
    let mut gone = before["places"].as_object().into_iter().flatten();
    let dead = gone
        .any(|(ticket, place)| places[ticket].is_null() && by_another(place) && !granted(&place["context"]));
    let missed =
        || after["there"].as_object().into_iter().flatten().any(|(_, there)| !there["missed"].is_null());
    let count = |of: &Value| of.as_object().map_or(0, serde_json::Map::len);
    let all = [
        (
            "table: several hold an id",
            ids().any(|(_, id)| id["held"].as_array().is_some_and(|held| held.len() > 1)),
        ),
        ("table: an offer", held().any(|held| is_offer(held, grants, &before))),
        ("table: a change that may be taken back", has("prior")),
        ("table: a broken lock is held", has("broken")),
        ("table: a renewal of the future is ignored", has("ignored")),
        ("table: an id is frozen", ids().any(|(_, id)| !id["frozen"].is_null())),
        ("table: a grant goes to another session", grants.as_object().into_iter().flatten().any(moves)),
        ("table: a place is removed by another process", dead),
        ("table: a session is missed", missed()),
        ("table: ten wait", count(places) >= 10),
        ("table: an attempt is withdrawn", is_more(&tombstones(&before), &tombstones(&after))),
        ("table: tombstones end", is_more(&tombstones(&after), &tombstones(&before))),
    ];
    all.into_iter().filter(|(_, is_so)| *is_so).map(|(state, _)| state).collect()
}

/// Returns whether a lock was granted by this write to a context that had waited for it.
fn is_offer(held: &Value, grants: &Value, before: &Value) -> bool {
    let fence = held["fence"].to_string();
    let waited = || {
        let mut places = before["places"].as_object().into_iter().flatten();
        places.any(|(_, place)| place["context"] == grants[&fence]["context"])
    };
    before["grants"][&fence].is_null() && waited()
}

/// Returns the attempts with a tombstone: of a whole table, and of an id with a cell of its own.
fn tombstones(table: &Value) -> BTreeSet<&String> {
    let ids = table["ids"].as_object().into_iter().flatten().map(|(_, id)| &id["tombstones"]);
    let all = ids.chain([&table["tombstones"]]).filter_map(Value::as_object);
    all.flat_map(|of| of.keys()).collect()
}

fn is_more(before: &BTreeSet<&String>, after: &BTreeSet<&String>) -> bool {
    !after.is_subset(before)
}
