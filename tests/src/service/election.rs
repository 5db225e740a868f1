//! Leader election: 3.11 and 5, through `lockcore::election`.

use std::{pin::pin, time::Duration};

use futures_util::{FutureExt, StreamExt, future};
use lockcore::{BadRequest, BreakMode, LockError, Target, election::Election};

use super::Rig;
use crate::{Backend, Store, eventually};

const NAME: &str = "scheduler";
const OFTEN: Duration = Duration::from_millis(50);

/// 3.7 and 5: one candidate leads, observers see its term and value, and the next one follows with a higher term.
pub async fn candidates_lead_one_after_the_other<B: Backend>(store: Store<B>) {
    let rig = Rig::new(&store);
    let election = Election::new(&rig.locks, NAME);
    let first = election.campaign("10.0.0.1:80").await.expect("the store answers");
    let mut second = pin!(election.campaign("10.0.0.2:80"));
    assert!((&mut second).now_or_never().is_none());
    let observed = store.capabilities().listing;
    if observed {
        let leader = election.leader().await.expect("the store answers").expect("one leads");
        assert_eq!((&*leader.value, leader.term), ("10.0.0.1:80", first.term()));
    }
    let term = first.term();
    let (resigned, second) = future::join(first.resign(), second).await;
    resigned.expect("it led until then");
    let second = second.expect("the store answers");
    assert!(second.term() > term);
    if observed {
        let leader = election.leader().await.expect("the store answers").expect("one leads");
        assert_eq!((&*leader.value, leader.term), ("10.0.0.2:80", second.term()));
    }
    second.resign().await.expect("it led until then");
    if observed {
        assert_eq!(election.leader().await.expect("the store answers"), None);
    }
}

/// 6: an observer sees each leader come and go.
pub async fn observers_see_each_leader<B: Backend>(store: Store<B>) {
    if !store.capabilities().listing {
        return;
    }
    let rig = Rig::new(&store);
    let election = Election::new(&rig.locks, NAME);
    let refused = pin!(election.observe(Duration::ZERO)).next().await.expect("there is an answer");
    assert!(matches!(refused, Err(LockError::BadRequest(BadRequest::OutOfBounds { field: "every", .. }))));
    let mut leaders = pin!(election.observe(OFTEN));
    assert_eq!(leaders.next().await.expect("the stream goes on").expect("the store answers"), None);
    for value in ["one", "two"] {
        let leadership = election.campaign(value).await.expect("the store answers");
        let seen = leaders.next().await.expect("the stream goes on").expect("the store answers");
        let seen = seen.expect("one leads");
        assert_eq!((&*seen.value, seen.term), (value, leadership.term()));
        leadership.resign().await.expect("it led until then");
        assert_eq!(leaders.next().await.expect("the stream goes on").expect("the store answers"), None);
    }

    // That another candidate waits is no change of the leader.
    let third = election.campaign("three").await.expect("the store answers");
    let seen = leaders.next().await.expect("the stream goes on").expect("the store answers");
    assert_eq!(seen.map(|leader| leader.term), Some(third.term()));
    let name = Target::Id(NAME.to_owned());
    let resigns = async {
        if store.capabilities().fifo {
            let waits =
                async || rig.locks.admin().inspect(&name).await.expect("the store answers").waiters.pop();
            eventually("a candidate waits", waits).await;
        }
        third.resign().await.expect("it led until then");
    };
    let (fourth, seen, ()) = future::join3(election.campaign("four"), leaders.next(), resigns).await;
    let seen = seen.expect("the stream goes on").expect("the store answers");
    assert!(seen.is_none_or(|leader| &*leader.value == "four"));
    fourth.expect("the store answers").resign().await.expect("it led until then");
}

/// 3.9: a leader learns that its term is lost.
pub async fn a_lost_term_is_reported<B: Backend>(store: Store<B>) {
    if !store.capabilities().breaking {
        return;
    }
    let rig = Rig::with(&store, |builder| builder.lease(store.lasting()));
    let election = Election::new(&rig.locks, NAME);
    let leadership = election.campaign("one").await.expect("the store answers");
    let target = Target::Id(NAME.to_owned());
    rig.locks.admin().break_lock(&target, leadership.term(), BreakMode::Now).await.expect("it is held");
    assert_eq!(leadership.lost().await.len(), 1);
    leadership.resign().await.expect_err("the term was over");
}
