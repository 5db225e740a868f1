//! The row that says in which form a namespace is locked; see [`Form`].

use sqlx::{AssertSqlSafe, Row};

use super::{error::failed, link::Link, schema::Names};
use crate::server::{Form, ServerError, Settings, column};

/// Enters the namespace as one of this form, unless there is a row; refuses it if that says another.
pub(super) async fn enter(
    names: &Names,
    form: Form,
    settings: &Settings,
    link: &mut Link,
) -> Result<(), ServerError> {
    let (table, ns) = (names.quoted("form"), column(&settings.namespace));
    let mut found = read(&table, &ns, link).await?;
    if found.is_none() && !settings.administration {
        let word = form.word();
        link.run(AssertSqlSafe(format!(
            "INSERT INTO {table} (ns, form) VALUES ('{ns}', '{word}') ON CONFLICT (ns) DO NOTHING"
        )))
        .await?;
        found = read(&table, &ns, link).await?;
        return form.check_written("postgres", &settings.namespace, found.as_deref());
    }
    form.check("postgres", &settings.namespace, found.as_deref())
}

async fn read(table: &str, ns: &str, link: &mut Link) -> Result<Option<String>, ServerError> {
    let read = format!("SELECT form FROM {table} WHERE ns = '{ns}'");
    let row = sqlx::raw_sql(AssertSqlSafe(read)).fetch_optional(link.raw()).await.map_err(failed)?;
    row.map(|row| row.try_get(0).map_err(failed)).transpose()
}
