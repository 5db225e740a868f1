//! Objects that others wrote: no content of a table or a session makes a step panic.

use std::sync::Arc;

use lockcore::{
    BreakMode, Mode, Page,
    backend::{ServiceTime, Withdraw},
};
use lockcore_conformance::hostile::feed;

use crate::{
    admin, poll,
    request::{Hold, Request},
    session::Session,
    step::Step,
    table::{Claim, Table},
    takeover::{Needs, Scope, Seen, SeenCell, Sessions},
};

const NOW: u64 = 1_795_000_000_000_000;

const TABLE: &str = r#"{"format":1,"stamp":{"session":"s","number":3},"high":1795000000000007,"ticket":9,"swept":0,
"grants":{"1795000000000001":{"context":"c","attempt":5,"owner":"o","session":"s","since":1795000000000000},
"1795000000000007":{"context":"c","attempt":6,"session":"t","since":1795000000000000}},
"ids":{"a":{"held":[{"fence":1795000000000007,"mode":"exclusive","in_use":1,"lease":10000000,"until":1795000005000000,
"prior":{"fence":1795000000000001,"mode":{"slots":{"permits":1,"limit":2}},"permits":[0],"in_use":1,"lease":10000000,
"until":1795000005000000}}],"frozen":true,"breaks":[{"context":"d","fence":4,"by":"me","at":1795000000000000,"now":true}]},
"b":{"held":[{"fence":1795000000000001,"mode":"shared","in_use":1,"lease":10000000,"until":1794000005000000,"broken":true}]}},
"places":{"8":{"context":"e","attempt":7,"session":"s","since":1795000000000000,"lease":10000000,"nested":true,
"claims":[{"id":"a","mode":"shared"},{"id":"b","mode":"exclusive"}]}},
"tombstones":{"77":1795000009000000},"writes":{"s":{"number":3,"at":1795000000000000}}}"#;

const SESSION: &str = r#"{"format":1,"stamp":{"session":"s","number":3},
"renewals":{"1795000000000001":{"until":1795000015000000,"lease":10000000}},
"closed":{"1795000000000007":{"a":1794000005000000}}}"#;

#[test]
fn no_table_makes_a_step_panic() {
    let session = Session::read(SESSION.as_bytes()).expect("it is valid");
    assert!(Table::read(TABLE.as_bytes()).is_ok());
    feed(&[TABLE], |text| {
        if let Ok(table) = Table::read(text.as_bytes()) {
            every_step(&table, &session);
        }
    });
}

/// The numbers that a step counts on from.
#[test]
fn the_highest_numbers_make_no_step_panic() {
    let session = Session::read(SESSION.as_bytes()).expect("it is valid");
    for (usual, highest) in [
        (r#""ticket":9"#, r#""ticket":18446744073709551615"#),
        (r#""8":{"#, r#""18446744073709551615":{"#),
        (r#""high":1795000000000007"#, r#""high":18446744073709551615"#),
        (r#""until":1795000005000000"#, r#""until":18446744073709551615"#),
        (r#""lease":10000000"#, r#""lease":18446744073709551615"#),
        (r#""permits":1,"limit":2"#, r#""permits":4294967295,"limit":4294967295"#),
        (r#""77":1795000009000000"#, r#""77":18446744073709551615"#),
        // One below what could not be read any more, if that were the same for ever.
        (r#""ticket":9"#, r#""ticket":9223372036854775806"#),
        (r#""8":{"#, r#""9223372036854775806":{"#),
        (r#""high":1795000000000007"#, r#""high":9223372036854775806"#),
    ] {
        let text = TABLE.replace(usual, highest);
        assert_ne!(text, TABLE, "{usual}");
        if let Ok(table) = Table::read(text.as_bytes()) {
            every_step(&table, &session);
        }
    }
}

#[test]
fn no_session_makes_a_step_panic() {
    let table = Table::read(TABLE.as_bytes()).expect("it is valid");
    feed(&[SESSION], |text| {
        if let Ok(session) = Session::read(text.as_bytes()) {
            every_step(&table, &session);
        }
    });
}

fn every_step(table: &Table, session: &Session) {
    let all = [SeenCell::There(Arc::new(session.clone())), SeenCell::Absent, SeenCell::Unreadable];
    for (s, t) in all.iter().flat_map(|s| all.iter().map(move |t| (s, t))) {
        let seen = |cell: &SeenCell| Seen { cell: cell.clone(), at: NOW, since: NOW, is_after_mark: true };
        let sessions = Sessions::from([("s".to_owned(), seen(s)), ("t".to_owned(), seen(t))]);
        every_step_with(table, &sessions);
    }
}

fn every_step_with(table: &Table, sessions: &Sessions) {
    let now = ServiceTime { lo: NOW, hi: NOW + 500_000 };
    let request = |context: &str, attempt, mode| Request {
        context: context.to_owned(),
        attempt,
        claims: ["a", "b"].map(|id| Claim::new(id, mode)).into(),
        lease: 10_000_000,
        owner: String::new(),
        queue: true,
        nested: false,
    };
    let hold = Hold {
        context: "c".to_owned(),
        locks: vec![("a".to_owned(), 1_795_000_000_000_007), ("b".to_owned(), 1_795_000_000_000_001)],
        lease: 10_000_000,
    };
    let mut scope = Scope { all: true, ..Scope::of(&Arc::new(request("e", 7, Mode::Shared))) };
    let needs = Needs::of(table, sessions, now, &scope);
    for session in sessions.values().filter_map(Seen::session) {
        let mut session = (**session).clone();
        session.extend([(1_795_000_000_000_001, 10_000_000)], now);
        for locks in needs.close.values() {
            session.close(locks, now);
        }
        session.forget(table);
        assert!(Session::read(&session.write()).is_ok());
    }
    scope.closes = Some(("a".to_owned(), 1_795_000_000_000_007));
    let _ = Needs::of(table, sessions, now, &scope);
    let _ = poll::state(table, sessions, now, &request("e", 7, Mode::Shared));
    let each = |step: &dyn Fn(&mut Step<'_>)| {
        let mut changed = table.clone();
        step(&mut Step::new(&mut changed, sessions, now, NOW, "s"));
        changed.prune(now.lo, 1);
        let _bytes = changed.reserved();
        let content = changed.write();
        assert!(Table::read(&content).is_ok(), "a step wrote what it cannot read: {changed:?}");
    };
    each(&|step| drop(step.acquire(&request("c", 8, Mode::Exclusive))));
    each(&|step| drop(step.acquire(&request("new", 9, Mode::Slots { permits: 1, limit: 3 }))));
    each(&|step| drop(step.withdraw(&request("c", 6, Mode::Exclusive), Withdraw::Undo)));
    each(&|step| drop(step.withdraw(&request("e", 7, Mode::Shared), Withdraw::KeepIfGranted)));
    each(&|step| drop(step.release(&hold)));
    each(&|step| {
        drop((
            step.renew(&hold),
            step.is_whole(&hold),
            step.is_shorter(&hold),
            step.extend(&hold, Some(("s", "t"))),
        ))
    });
    each(&|step| step.mark("s"));
    each(&|step| {
        step.break_lock("a", 1_795_000_000_000_007, BreakMode::Now, "me");
    });
    each(&|step| drop(step.release_context("c")));
    each(&|step| step.freeze("a", false));
    each(&|step| {
        step.sweep(10, 1);
    });
    each(&|step| drop((admin::list(step, &Page::default()), admin::inspect(step, "a"))));
}
