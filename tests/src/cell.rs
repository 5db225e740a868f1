//! The checks of an adapter of `lockcore-cell`: one for each promise of the trait [`Cell`].
//!
//! An adapter says how its store is opened, as an [`Adapter`], and instantiates the checks with one macro; a complete example is
//! `tests/sqlite.rs` of `lockcore-cell`, with `tests/main.rs`:
//!
//! `lockcore_conformance::cell_conformance!(my_cells, MyAdapter);`
//!
//! What they leave out: [`Cell::changed`] may end too often and may miss a change, so that nothing can be checked of it.

mod costs;
mod several;

pub use costs::costs;
pub use several::{
    a_cell_is_removed_at_its_version, all_are_replaced_or_none, overlapping_sets_never_both,
    sets_of_all_sizes_are_replaced, several_cells_are_replaced_at_once,
};

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join;
use lockcore::BackendError;
use lockcore_cell::{Cell, Found, Written};
use tokio::time::{Instant, sleep};

use crate::{eventually, polls::dropped_after, race};

/// An adapter under test.
pub trait Adapter: Send + Sync + 'static {
    /// Its implementation of the trait.
    type Cell: Cell;

    /// Keeps alive what the store needs.
    type Place: Send + Sync + 'static;

    /// Set if the store derives a version from the content, as S3 does. The engine writes no content twice, and nor do the checks
    /// then.
    const VERSIONS_ARE_OF_CONTENTS: bool = false;

    /// The number of cells that the check of a long list writes: more than a page has, if possible.
    const MANY: usize = 30;

    /// Makes a place without cells, another at each call.
    fn place(&self) -> impl Future<Output = Self::Place> + Send;

    /// Opens the cells of a place, as another process would.
    fn open(&self, place: &Self::Place) -> impl Future<Output = Self::Cell> + Send;

    /// Lets the next write meet a fault. `false`, unless this is overridden, where none can be had.
    fn fault(&self, _place: &Self::Place, _fault: Fault) -> impl Future<Output = bool> + Send {
        async { false }
    }

    /// Sets the store's clock by so many seconds, for all that goes by it. `false`, unless this is overridden, where it cannot be set.
    fn step(&self, _place: &Self::Place, _seconds: i64) -> impl Future<Output = bool> + Send {
        async { false }
    }
}

/// What a write meets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is done, and its response is lost.
    LosesResponse,
    /// It is not done, as the store is overloaded or unavailable, and the response says so.
    IsTurnedAway,
}

/// The cells of a place of its own, for one check.
pub struct Cells<A: Adapter> {
    adapter: A,
    place: A::Place,
}

/// A check of an adapter.
pub struct CellCheck<A: Adapter> {
    /// Its name.
    pub name: &'static str,
    /// Runs it; panics if a promise is broken.
    pub run: fn(Cells<A>) -> futures_util::future::LocalBoxFuture<'static, ()>,
}

type Version<A> = <<A as Adapter>::Cell as Cell>::Version;

impl<A: Adapter> Cells<A> {
    /// A place without cells.
    pub async fn new(adapter: A) -> Self {
        let place = adapter.place().await;
        Cells { adapter, place }
    }

    async fn open(&self) -> A::Cell {
        self.adapter.open(&self.place).await
    }

    async fn two(&self) -> (A::Cell, A::Cell) {
        (self.open().await, self.open().await)
    }
}

/// Repeats a request until it is answered: a store may turn away what it may not have done, too, and a write that was is then
/// refused.
async fn answer<T, F>(request: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, BackendError>>,
{
    eventually("the store answers", async || match request().await {
        Ok(answer) => Some(answer),
        Err(error) if error.is_retryable() => None,
        Err(error) => panic!("{error}"),
    })
    .await
}

/// Writes a cell, which has to be done.
async fn write<C: Cell>(cell: &C, name: &str, at: Option<&C::Version>, content: &str) -> C::Version {
    let (content, in_doubt) = (Bytes::from(content.to_owned()), AtomicBool::new(false));
    let (sent, doubt) = (&content, &in_doubt);
    let written = answer(move || async move {
        let written = cell.replace(name, at, sent.clone()).await;
        doubt.fetch_or(written.as_ref().is_err_and(BackendError::in_doubt), SeqCst);
        written
    });
    match written.await {
        Written::Done(version) => version,
        // Its answer came too late, and it was sent again.
        Written::Refused if in_doubt.load(SeqCst) => {
            let (version, found) = read(cell, name).await;
            assert_eq!(found, content, "{name} is not written");
            version
        }
        Written::Refused => panic!("{name} is not written"),
    }
}

/// Writes a cell, which has to be refused.
async fn refused<C: Cell>(cell: &C, name: &str, at: Option<&C::Version>) {
    let written = answer(|| cell.replace(name, at, Bytes::from_static(b"refused"))).await;
    assert!(matches!(written, Written::Refused), "{name} is written, though its condition does not hold");
}

/// Reads a cell that is there.
async fn read<C: Cell>(cell: &C, name: &str) -> (C::Version, Bytes) {
    let Found::Changed(version, content) = answer(|| cell.read(name, None)).await else {
        panic!("{name} is not there");
    };
    (version, content)
}

async fn has<C: Cell>(cell: &C, name: &str, content: &str) {
    assert_eq!(read(cell, name).await.1, content, "{name}");
}

async fn is_absent<C: Cell>(cell: &C, name: &str) {
    let found = answer(|| cell.read(name, None)).await;
    assert!(matches!(found, Found::Absent), "{name}: {found:?}");
}

/// All names of a folder, by as many pages as it takes, with when they were written.
async fn listed<C: Cell>(cell: &C, folder: &str, mut after: Option<String>) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    loop {
        let page = answer(|| cell.list(folder, after.as_deref())).await;
        assert!(!page.cells.is_empty() || !page.more, "a page has one cell at least, where there are any");
        for (name, _) in &page.cells {
            assert!(after.as_ref() < Some(name), "{name} is listed after {after:?}");
            after = Some(name.clone());
        }
        all.extend(page.cells);
        if !page.more {
            return all;
        }
    }
}

/// Waits until a folder has exactly these names, as a list may be late.
async fn lists<C: Cell>(
    cell: &C,
    folder: &str,
    after: Option<&str>,
    expected: &[impl AsRef<str> + fmt::Debug],
) {
    eventually(&format!("{folder} has the cells {expected:?}, after {after:?}"), async || {
        let names = listed(cell, folder, after.map(str::to_owned)).await;
        let expected = expected.iter().map(AsRef::as_ref);
        names.iter().map(|(name, _)| name.as_str()).eq(expected).then_some(())
    })
    .await;
}

/// A cell is created only if there is none, for each who has the store open.
pub async fn a_cell_is_created_once<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    is_absent(&one, "a").await;
    write(&one, "a", None, "1").await;
    refused(&one, "a", None).await;
    refused(&two, "a", None).await;
    has(&two, "a", "1").await;
    write(&two, "folder/a", None, "2").await;
    has(&one, "a", "1").await;
}

/// A cell is replaced only if it is of the version that is named, whether that was written or read.
pub async fn only_the_named_version_is_replaced<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    let first = write(&one, "a", None, "1").await;
    let (found, _) = read(&two, "a").await;
    let second = write(&two, "a", Some(&found), "2").await;
    for old in [&first, &found] {
        refused(&one, "a", Some(old)).await;
    }
    has(&one, "a", "2").await;
    let third = write(&one, "a", Some(&second), "3").await;
    refused(&two, "a", Some(&second)).await;
    write(&two, "a", Some(&third), "4").await;
    has(&one, "a", "4").await;
}

/// Of writes at once that name the same version exactly one is done.
pub async fn one_of_many_wins<A: Adapter>(cells: Cells<A>) {
    const RACERS: usize = 8;
    let (one, two) = cells.two().await;
    let both = [Arc::new(one), Arc::new(two)];
    let mut at: Option<Version<A>> = None;
    for round in 0..6 {
        let outcomes = race(RACERS, |number| {
            let (cell, at) = (both[number % 2].clone(), at.clone());
            async move {
                let content = format!("{round}/{number}");
                answer(|| cell.replace("a", at.as_ref(), Bytes::from(content.clone()))).await
            }
        });
        let outcomes = outcomes.await;
        let won = outcomes.iter().enumerate().filter_map(|(number, outcome)| match outcome {
            Written::Done(version) => Some((number, version.clone())),
            Written::Refused => None,
        });
        let won: Vec<_> = won.collect();
        let [(winner, version)] = &won[..] else { panic!("{} of {RACERS} won: {won:?}", won.len()) };
        has(&*both[0], "a", &format!("{round}/{winner}")).await;
        at = Some(version.clone());
    }
}

/// A version never comes back: not with a content that was there before, nor where the cell was removed meanwhile.
pub async fn no_version_comes_back<A: Adapter>(cells: Cells<A>) {
    let cell = cells.open().await;
    let mut old = Vec::new();
    let mut at = None;
    for round in 0..6 {
        let content = if A::VERSIONS_ARE_OF_CONTENTS { format!("{round}") } else { "the same".to_owned() };
        let version = write(&cell, "a", at.as_ref(), &content).await;
        for old in &old {
            refused(&cell, "a", Some(old)).await;
            let found = answer(|| cell.read("a", Some(old))).await;
            assert!(matches!(found, Found::Changed(..)), "an old version is taken for the newest");
        }
        old.push(version.clone());
        at = Some(version);
        if round % 2 == 1 {
            answer(|| cell.remove("a")).await;
            at = None;
        }
    }
}

/// A read with a version that is known says whether it is still the newest.
pub async fn a_known_version_is_recognized<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    let first = write(&one, "a", None, "1").await;
    let (found, _) = read(&two, "a").await;
    for known in [&first, &found] {
        assert!(matches!(answer(|| two.read("a", Some(known))).await, Found::Unchanged));
    }
    let second = write(&one, "a", Some(&first), "2").await;
    for known in [&first, &found] {
        let Found::Changed(version, content) = answer(|| two.read("a", Some(known))).await else {
            panic!("a write of another process is not seen");
        };
        assert_eq!(content, "2");
        assert!(matches!(answer(|| one.read("a", Some(&version))).await, Found::Unchanged));
    }
    answer(|| two.remove("a")).await;
    assert!(matches!(answer(|| one.read("a", Some(&second))).await, Found::Absent));
}

/// A cell that is absent is no error: it is read as absent, replaced by no one, and created.
pub async fn what_is_absent_is_no_error<A: Adapter>(cells: Cells<A>) {
    let cell = cells.open().await;
    is_absent(&cell, "a").await;
    is_absent(&cell, "folder/a").await;
    let first = write(&cell, "a", None, "1").await;
    answer(|| cell.remove("a")).await;
    is_absent(&cell, "a").await;
    refused(&cell, "a", Some(&first)).await;
    is_absent(&cell, "a").await;
    write(&cell, "a", None, "2").await;
    has(&cell, "a", "2").await;
}

/// Removing a cell that is not there does nothing.
pub async fn removing_again_does_nothing<A: Adapter>(cells: Cells<A>) {
    let (one, two) = cells.two().await;
    answer(|| one.remove("folder/a")).await;
    write(&one, "folder/a", None, "1").await;
    write(&one, "folder/ab", None, "2").await;
    for cell in [&one, &two, &one] {
        answer(|| cell.remove("folder/a")).await;
        is_absent(cell, "folder/a").await;
    }
    answer(|| one.remove("folder")).await;
    has(&two, "folder/ab", "2").await;
}

/// A content comes back byte by byte, from none to a mebibyte.
pub async fn contents_come_back_unchanged<A: Adapter>(cells: Cells<A>) {
    let cell = cells.open().await;
    let all: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
    let mut at = None;
    for content in [&all[..0], &all[..1], &all[..256], &all[..]] {
        let content = Bytes::copy_from_slice(content);
        let written = answer(|| cell.replace("a", at.as_ref(), content.clone())).await;
        let Written::Done(version) = written else { panic!("{} bytes are not written", content.len()) };
        let (found, back) = read(&cell, "a").await;
        assert!(back == content, "{} bytes come back as {}", content.len(), back.len());
        refused(&cell, "a", None).await;
        assert!(matches!(answer(|| cell.read("a", Some(&version))).await, Found::Unchanged));
        at = Some(found);
    }
}

/// A list has the cells of its folder in the order of their names, and none of other folders.
pub async fn a_list_has_one_folder_in_order<A: Adapter>(cells: Cells<A>) {
    let cell = cells.open().await;
    lists(&cell, "f", None, &[""; 0]).await;
    for name in ["f/b", "f/a", "f/a/1", "f/B", "f/ab", "f/1", "f/b/2/3", "fa", "f2/a", "g/f/a", "f"] {
        write(&cell, name, None, name).await;
    }
    lists(&cell, "f", None, &["f/1", "f/B", "f/a", "f/ab", "f/b"]).await;
    lists(&cell, "f/a", None, &["f/a/1"]).await;
    lists(&cell, "h", None, &[""; 0]).await;
    answer(|| cell.remove("f/B")).await;
    lists(&cell, "f", None, &["f/1", "f/a", "f/ab", "f/b"]).await;
}

/// A list goes on from behind a name, whether there is such a cell or not.
pub async fn a_list_goes_on<A: Adapter>(cells: Cells<A>) {
    let cell = cells.open().await;
    for name in ["f/a", "f/b", "f/d", "f/d/1"] {
        write(&cell, name, None, name).await;
    }
    lists(&cell, "f", None, &["f/a", "f/b", "f/d"]).await;
    lists(&cell, "f", Some("f/a"), &["f/b", "f/d"]).await;
    lists(&cell, "f", Some("f/c"), &["f/d"]).await;
    lists(&cell, "f", Some("f/d"), &[""; 0]).await;
}

/// A long list comes by pages, each cell once, also where a folder within it has more than a page.
pub async fn a_long_list_has_pages<A: Adapter>(cells: Cells<A>) {
    let cell = Arc::new(cells.open().await);
    let mut names: Vec<String> = (0..A::MANY).map(|number| format!("f/{number:06}")).collect();
    let within = (0..A::MANY).map(|number| format!("f/000000x/{number:06}"));
    let all: Vec<String> = names.iter().cloned().chain(within).collect();
    for some in all.chunks(32) {
        let some: Vec<String> = some.to_vec();
        let cell = cell.clone();
        race(some.len(), move |number| {
            let (cell, name) = (cell.clone(), some[number].clone());
            async move { drop(write(&*cell, &name, None, &name).await) }
        })
        .await;
    }
    names.sort();
    lists(&*cell, "f", None, &names).await;
}

/// Time goes on, at the rate of this machine's clock.
pub async fn time_goes_on<A: Adapter>(cells: Cells<A>) {
    // A clock may be slewed, and be read in milliseconds.
    const SLACK: u64 = 100_000;
    let cell = cells.open().await;
    let micros = |duration: Duration| duration.as_micros() as u64;
    let mut last = None;
    for _ in 0..50 {
        let called = Instant::now();
        let now = answer(|| cell.now()).await;
        let ended = Instant::now();
        assert!(now.lo <= now.hi, "{now:?}");
        if let Some((before, its_call, its_end)) = last.replace((now, called, ended)) {
            let before: lockcore::backend::ServiceTime = before;
            let (least, most) = (micros(called - its_end), micros(ended - its_call));
            assert!(now.hi + SLACK >= before.lo + least, "{before:?}, {now:?} {least} us later");
            assert!(now.lo <= before.hi + most + SLACK, "{before:?}, {now:?} {most} us later");
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// The bounds of time hold what the store writes down meanwhile.
pub async fn what_is_written_is_within_the_bounds<A: Adapter>(cells: Cells<A>) {
    // Stores keep whole seconds.
    const SECOND: u64 = 1_000_000;
    let cell = cells.open().await;
    for number in 0..3 {
        let before = answer(|| cell.now()).await;
        let name = format!("f/{number}");
        write(&cell, &name, None, &name).await;
        let after = answer(|| cell.now()).await;
        let written = eventually("the cell is listed", async || {
            let all = listed(&cell, "f", None).await;
            all.into_iter().find_map(|(listed, written)| (listed == name).then_some(written))
        });
        let written = written.await;
        assert!(written + SECOND > before.lo && written <= after.hi, "{before:?}, {written}, {after:?}");
    }
}

/// The bounds of time follow a step of the store's clock, forwards and backwards, also for who asks for nothing but the time.
pub async fn time_follows_a_step<A: Adapter>(cells: Cells<A>) {
    // Shorter than the shortest lease of stores that have to estimate the time.
    const PAUSE: Duration = Duration::from_secs(5);
    const NARROW: u64 = 60_000_000;
    let (one, two) = cells.two().await;
    for seconds in [120, -240] {
        let narrow = async |cell: &A::Cell| {
            eventually("the time is known after an earlier step", async || {
                Some(answer(|| cell.now()).await).filter(|now| now.hi - now.lo < NARROW)
            })
            .await
        };
        narrow(&two).await;
        let since = Instant::now();
        let (before, until) = (narrow(&one).await, Instant::now());
        if !cells.adapter.step(&cells.place, seconds).await {
            return;
        }
        sleep(PAUSE).await;
        for cell in [&one, &two] {
            let called = Instant::now();
            let now = answer(|| cell.now()).await;
            let set = |bound: u64, passed: Duration| {
                (bound + passed.as_micros() as u64).saturating_add_signed(seconds * 1_000_000)
            };
            let (lo, hi) = (set(before.lo, called - until), set(before.hi, since.elapsed()));
            assert!(now.lo <= hi && lo <= now.hi, "{now:?} after a step by {seconds} s of {before:?}");
        }
    }
}

/// An error that is not in doubt promises that nothing was written: a write whose response is lost was done, whatever is said.
pub async fn a_lost_response_is_in_doubt<A: Adapter>(cells: Cells<A>) {
    let (cell, other) = cells.two().await;
    let mut at = None;
    for content in ["1", "2"] {
        if !cells.adapter.fault(&cells.place, Fault::LosesResponse).await {
            return;
        }
        match cell.replace("a", at.as_ref(), Bytes::from_static(content.as_bytes())).await {
            // Of a second try of the adapter; the engine looks whose content it is.
            Ok(Written::Done(_) | Written::Refused) => {}
            Err(error) => assert!(error.in_doubt(), "it was written: {error}"),
        }
        let (version, found) = read(&other, "a").await;
        assert_eq!(found, content);
        at = Some(version);
    }
}

/// A write that the store turned away is an error that may pass, and no refusal.
pub async fn what_is_turned_away_may_pass<A: Adapter>(cells: Cells<A>) {
    let cell = cells.open().await;
    let mut at = None;
    for content in ["1", "2"] {
        if !cells.adapter.fault(&cells.place, Fault::IsTurnedAway).await {
            return;
        }
        let content = Bytes::from_static(content.as_bytes());
        match cell.replace("a", at.as_ref(), content.clone()).await {
            Ok(Written::Refused) => panic!("its condition holds"),
            // By a second try of the adapter.
            Ok(Written::Done(version)) => at = Some(version),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                let written = answer(|| cell.replace("a", at.as_ref(), content.clone())).await;
                let Written::Done(version) = written else { panic!("its condition holds") };
                at = Some(version);
            }
        }
    }
}

/// A future may be dropped at any point: other calls go on, and the cell is of a version that was written.
pub async fn a_dropped_future_harms_no_other<A: Adapter>(cells: Cells<A>) {
    let cell = cells.open().await;
    let dropping = async {
        for polls in 0..8 {
            let at = match answer(|| cell.read("dropped", None)).await {
                Found::Changed(version, _) => Some(version),
                _ => None,
            };
            let content = Bytes::from(format!("{polls}"));
            drop(dropped_after(polls, cell.replace("dropped", at.as_ref(), content)).await);
            drop(dropped_after(polls, cell.read("dropped", None)).await);
            drop(dropped_after(polls, cell.list("f", None)).await);
            drop(dropped_after(polls, cell.remove("absent")).await);
            drop(dropped_after(polls, cell.now()).await);
        }
    };
    let counting = async {
        let mut at = write(&cell, "f/count", None, "0").await;
        for number in 1..20 {
            at = write(&cell, "f/count", Some(&at), &format!("{number}")).await;
            answer(|| cell.now()).await;
            has(&cell, "f/count", &format!("{number}")).await;
        }
    };
    join(dropping, counting).await;
    lists(&cell, "f", None, &["f/count"]).await;
    // A write that was dropped may still arrive.
    eventually("the cell is replaced", async || {
        let found = answer(|| cell.read("dropped", None)).await;
        let at = match &found {
            Found::Changed(version, content) => {
                let number: u8 =
                    std::str::from_utf8(content).ok()?.parse().expect("a content that was written");
                assert!(number < 8);
                Some(version)
            }
            _ => None,
        };
        let written = answer(|| cell.replace("dropped", at, Bytes::from_static(b"0"))).await;
        matches!(written, Written::Done(_)).then_some(())
    })
    .await;
}

/// Calls a macro with every check of adapters: `$callback! { [args] check, .. }`.
#[macro_export]
macro_rules! for_each_cell_check {
    ($callback:path $(, $($arg:tt)*)?) => {
        $callback! {
            [$($($arg)*)?]
            a_cell_is_created_once,
            only_the_named_version_is_replaced,
            one_of_many_wins,
            no_version_comes_back,
            a_known_version_is_recognized,
            what_is_absent_is_no_error,
            removing_again_does_nothing,
            contents_come_back_unchanged,
            a_list_has_one_folder_in_order,
            a_list_goes_on,
            a_long_list_has_pages,
            time_goes_on,
            what_is_written_is_within_the_bounds,
            time_follows_a_step,
            a_lost_response_is_in_doubt,
            what_is_turned_away_may_pass,
            a_dropped_future_harms_no_other,
            several_cells_are_replaced_at_once,
            all_are_replaced_or_none,
            overlapping_sets_never_both,
            a_cell_is_removed_at_its_version,
            sets_of_all_sizes_are_replaced,
        }
    };
}

/// Emits one `#[test]` for every check of adapters: `cell_conformance!(name, adapter)`, where `name` becomes the module of the tests
/// and `adapter` is an expression that gives an [`Adapter`](crate::cell::Adapter).
#[macro_export]
macro_rules! cell_conformance {
    ($name:ident, $adapter:expr) => {
        mod $name {
            $crate::for_each_cell_check!($crate::emit_cell_tests, $adapter);
        }
    };
}

/// Part of [`cell_conformance!`].
#[doc(hidden)]
#[macro_export]
macro_rules! emit_cell_tests {
    ([$adapter:expr] $($check:ident,)*) => {
        $(#[test]
        fn $check() {
            use super::*;
            $crate::cell::run($adapter, $crate::cell::$check);
        })*
    };
}

macro_rules! emit_registry {
    ([] $($check:ident,)*) => {
        /// All checks for one adapter, for a harness other than `#[test]`.
        pub fn all<A: Adapter>() -> Vec<CellCheck<A>> {
            vec![$(CellCheck { name: stringify!($check), run: |cells| Box::pin($check(cells)) },)*]
        }
    };
}

for_each_cell_check!(emit_registry);

/// Runs one check to its end on a runtime of its own.
pub fn run<A: Adapter, F: Future<Output = ()>>(adapter: A, check: impl FnOnce(Cells<A>) -> F) {
    let run = async { check(Cells::new(adapter).await).await };
    crate::registry::runtime(false).block_on(crate::registry::within_limit(false, run));
}
