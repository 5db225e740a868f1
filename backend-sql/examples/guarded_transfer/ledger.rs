//! Accounts in the application's own tables: the database itself refuses a write under a fence that is older than the
//! last one seen, in the statement that writes.

use lockcore::{ContextId, Held};
use sqlx::{MySqlPool, PgPool};

/// Whose transaction: each row remembers the highest fence that wrote it.
pub(crate) enum Ledger {
    Postgres(PgPool),
    Mysql(MySqlPool),
}

/// Why nothing was transferred.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// A later holder of the lock has been here, or the account is missing or has too little.
    #[error("{account} was not written: a later holder was there, or it has too little")]
    Refused { account: String },
    #[error("{account} is not locked exclusively")]
    NotHeld { account: String },
    #[error(transparent)]
    Sql(#[from] sqlx::Error),
}

/// The guard is `fence <= $2`: not `<`, because one holder may write more than once.
const POSTGRES: &str = "UPDATE ledger_account SET balance = balance + $1, fence = $2 \
     WHERE name = $3 AND fence <= $2 AND balance + $1 >= 0";
const MYSQL: &str = "UPDATE ledger_account SET balance = balance + ?, fence = ? \
     WHERE name = ? AND fence <= ? AND balance + ? >= 0";

impl Ledger {
    /// Moves `amount` in one transaction of the application's own; both accounts are locked by the caller.
    ///
    /// # Errors
    /// [`TransferError::Refused`] if the database refused a write; then nothing is written.
    pub(crate) async fn transfer<C: ContextId>(
        &self,
        held: &Held<String, C>,
        from: &str,
        to: &str,
        amount: i64,
    ) -> Result<(), TransferError> {
        let fence = |account: &str| {
            let fence = held.exclusive_fence(account);
            // Microseconds since 1970 and a little more: it fits for long.
            let number = fence.and_then(|fence| i64::try_from(fence.number()).ok());
            number.ok_or_else(|| TransferError::NotHeld { account: account.to_owned() })
        };
        let steps = [(from, fence(from)?, -amount), (to, fence(to)?, amount)];
        match self {
            Ledger::Postgres(pool) => {
                let mut transaction = pool.begin().await?;
                for (account, fence, change) in steps {
                    let query = sqlx::query(POSTGRES).bind(change).bind(fence).bind(account);
                    refused_unless(query.execute(&mut *transaction).await?.rows_affected(), account)?;
                }
                transaction.commit().await?;
            }
            Ledger::Mysql(pool) => {
                let mut transaction = pool.begin().await?;
                for (account, fence, change) in steps {
                    let query = sqlx::query(MYSQL).bind(change).bind(fence).bind(account);
                    let done = query.bind(fence).bind(change).execute(&mut *transaction).await?;
                    refused_unless(done.rows_affected(), account)?;
                }
                transaction.commit().await?;
            }
        }
        Ok(())
    }
}

/// The transaction is rolled back when it is dropped on the way out.
fn refused_unless(written: u64, account: &str) -> Result<(), TransferError> {
    match written {
        1 => Ok(()),
        _ => Err(TransferError::Refused { account: account.to_owned() }),
    }
}
