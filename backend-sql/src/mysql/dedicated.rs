//! Checks that connections are this client's alone, before a query on one of them is interrupted.

use futures_util::future::try_join;

use super::{
    link::{Argument, Link},
    schema::Names,
};
use crate::server::ServerError;

/// The number of times that both connections are asked.
const ROUNDS: usize = 4;

/// Refuses two connections if a proxy spreads their calls over connections of the server that it shares between clients:
/// `KILL QUERY` would interrupt another client's query there. With `names`, each of them has to hold its own.
pub(super) async fn ensure(
    routines: &Names,
    [one, other]: [&mut Link; 2],
    names: Option<[i64; 2]>,
) -> Result<(), ServerError> {
    let [first, second] = names.unwrap_or_default();
    let mut known = None;
    for round in 0..ROUNDS {
        // A proxy may give one connection to clients that take turns, and another one to a client that meets a busy one.
        let seen = match round % 2 {
            0 => (look(routines, one, first).await?, look(routines, other, second).await?),
            _ => try_join(look(routines, one, first), look(routines, other, second)).await?,
        };
        let (one, other) = (&seen.0, &seen.1);
        let named = names.is_none() || one.id == one.name_holder && other.id == other.name_holder;
        let ids = (one.id.clone(), other.id.clone());
        if one.id == other.id || !named || known.replace(ids.clone()).is_some_and(|known| known != ids) {
            let what =
                "a proxy shares connections of the server between clients, where KILL QUERY could interrupt \
                        another client's query"
                    .to_owned();
            return Err(ServerError::Misconfigured { backend: "mysql", what });
        }
    }
    Ok(())
}

/// The connection of the server on which a call arrived, and the one that has the name.
struct Seen {
    id: String,
    name_holder: String,
}

async fn look(routines: &Names, link: &mut Link, name: i64) -> Result<Seen, ServerError> {
    let text = link.call(&routines.quoted("v1_connection"), &[Argument::Int(name)]).await?.text;
    match text.split_once(' ') {
        Some((id, name_holder)) => Ok(Seen { id: id.to_owned(), name_holder: name_holder.to_owned() }),
        None => Err(ServerError::Answer { backend: "mysql", what: format!("{text:?}") }),
    }
}
