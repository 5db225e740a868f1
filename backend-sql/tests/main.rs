//! The tests of `lockcore-sql`: the suite on each database, and what only these have.

use std::{env, process::ExitCode};

use lockcore_conformance::{
    instances::listed,
    servers::{self, Kind, Trial},
};
use tokio::runtime::Builder;

/// The tests of a module about SQLite.
macro_rules! tests {
    [$module:literal, $($test:ident),* $(,)?] => {
        vec![$(crate::test(concat!("sqlite::", $module, "::", stringify!($test)), $test)),*]
    };
}

mod administration;
mod boots;
#[cfg(target_os = "linux")]
mod child;
mod collations;
mod connecting;
#[cfg(target_os = "linux")]
mod datagrams;
mod forms;
mod guarded_write;
mod handing_over;
mod hostile_defaults;
mod hostile_rows;
mod idle;
mod line;
mod mysql;
mod mysql_server;
#[cfg(target_os = "linux")]
mod names;
mod opening;
mod own_types;
mod pgbouncer;
mod postgres;
mod postgres_server;
#[cfg(target_os = "linux")]
mod processes;
mod read_only;
#[cfg(unix)]
mod replaced;
mod sqlite;
mod sqlite_busy;
mod statements;
mod steps;
mod unruly;
mod withdrawing;

const OF_MYSQL: [Kind; 2] = [Kind::MySql, Kind::MariaDb];

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    if child::play() {
        return ExitCode::SUCCESS;
    }
    let mut trials: Vec<_> = sqlite::checks().chain(postgres::checks()).collect();
    trials.extend(OF_MYSQL.into_iter().flat_map(mysql::checks));
    trials.extend([Kind::Postgres, Kind::MySql, Kind::MariaDb].into_iter().flat_map(statements::checks_of));
    // Else a part of the suite alone was asked for.
    if env::var_os("LOCKCORE_TEST_PART").is_none() {
        trials.extend(of_sqlite());
        trials.extend(of_servers());
    }
    servers::run(trials.into_iter().map(among_others))
}

fn of_sqlite() -> Vec<Trial> {
    let mut all = vec![
        administration::trials(),
        boots::trials(),
        handing_over::trials(),
        hostile_rows::trials(),
        opening::trials(),
        own_types::trials(),
        sqlite::trials(),
        sqlite_busy::trials(),
        withdrawing::trials(),
    ];
    #[cfg(unix)]
    all.push(replaced::trials());
    #[cfg(target_os = "linux")]
    all.extend([datagrams::trials(), names::trials(), processes::trials()]);
    all.into_iter().flatten().collect()
}

fn of_servers() -> impl Iterator<Item = Trial> {
    let of_postgres = [postgres::trials(), postgres_server::trials(), pgbouncer::trials()];
    let of_mysql = OF_MYSQL.into_iter().flat_map(|kind| [mysql::trials(kind), mysql_server::trials(kind)]);
    let of_all = [
        connecting::trials(),
        forms::trials(),
        guarded_write::trials(),
        idle::trials(),
        read_only::trials(),
        statements::trials(),
        unruly::trials(),
    ];
    let thorough = [collations::trials(), hostile_defaults::trials(), line::trials()]
        .into_iter()
        .flatten()
        .map(Trial::thorough);
    of_postgres.into_iter().chain(of_mysql).chain(of_all).flatten().chain(thorough)
}

/// A test about SQLite, on a runtime of its own.
fn test<F: Future<Output = ()>>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, || {
        Builder::new_current_thread().enable_all().build()?.block_on(test());
        Ok(())
    })
}

/// What is about time, as groups or single tests: offers are confirmed, leases renewed, short timeouts kept, hand-overs measured.
const LIVENESS: &[&str] = &[
    "forms::a_wait_ends_by_a_notification",
    "hazards::a_lost_listener_is_replaced",
    "hazards::a_process_looks_after_its_own_releases",
    "hazards::a_reset_listener_is_replaced",
    "hazards::an_exhausted_pool_is_reported",
    "hazards::nothing_depends_on_notifications",
    "hazards::what_is_refused_for_good_ends_a_wait",
    "joining::no_takeover_during_a_guarded_transaction",
    "joining::renewals_need_no_connection_of_the_pool",
    "messages",
    "notifications",
    "own::odd_contexts",
    "pgbouncer",
    "unruly::one_holds_a_lock",
    "store::more_waiters_than_one_step_serves",
    "waking",
];

/// Says which tests are about time, which take long or repeat what others show, and how many of a kind run at once.
fn among_others(trial: Trial) -> Trial {
    let name = trial.name().to_owned();
    let (instance, test) = name.split_once("::").expect("a test has an instance");
    let trial = if listed(LIVENESS, test) { trial.of_liveness() } else { trial };
    if test.starts_with("disk::") || test.starts_with("line::") {
        return trial.thorough().at_once("servers of their own", 4);
    }
    match (instance, test) {
        // What MySQL shows MariaDB shows too.
        ("mysql" | "mysql-statements", _) => trial.thorough().at_once("mysql", 4),
        ("mariadb" | "mariadb-statements", _) => trial.at_once("mariadb", 4),
        ("postgres", "cancellation::dropped_administration_can_be_repeated") => trial.thorough(),
        _ => trial,
    }
}
