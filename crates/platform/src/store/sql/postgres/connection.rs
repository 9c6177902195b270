//! One connection to the server, for as long as it lasts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use fulmar_postgres::{Address, ConnectError, SETTINGS, text_of};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, SimpleQueryMessage, Statement};

use super::super::{DatabaseError, Result, Value};
use super::values::numbered;

/// How long one waits for an answer. The server gives up before (`SETTINGS`), so that it is asked no more.
const PATIENCE: Duration = Duration::from_secs(30);
/// Statements that stay prepared; those with filters are made in a few forms each.
const MAX_PREPARED: usize = 256;

/// The tables' schema in the database.
pub(super) const SCHEMA: &str = "fulmar";

pub(super) struct Connection {
    /// Taken when it is dropped.
    runtime: Option<Runtime>,
    client: Client,
    prepared: RefCell<HashMap<String, Statement>>,
    lost: Cell<bool>,
    /// How long it waits for an answer.
    patience: Cell<Duration>,
    /// Whether a statement failed since the transaction or its mark was set.
    spoilt: Cell<bool>,
    server: String,
}

fulmar_text::opaque_debug!(Connection { server });

impl Connection {
    /// Connects.
    pub(super) fn connect(address: &Address) -> Result<Connection> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = match runtime.block_on(address.connect()) {
            Ok(client) => client,
            Err(error) => {
                runtime.shutdown_background();
                return Err(match error {
                    ConnectError::Setting(text) => DatabaseError::Setting(text),
                    ConnectError::Failed(error) if error.as_db_error().is_some() => failure(&error),
                    error => DatabaseError::Away(address.to_string(), error.to_string()),
                });
            }
        };
        let connection = Connection {
            runtime: Some(runtime),
            client,
            prepared: RefCell::default(),
            lost: Cell::new(false),
            patience: Cell::new(PATIENCE),
            spoilt: Cell::new(false),
            server: address.to_string(),
        };
        connection.batch(&format!("{SETTINGS}; SET search_path = {}", SCHEMA))?;
        Ok(connection)
    }

    /// Whether it can be used no more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get() || self.client.is_closed()
    }

    /// Whether a statement failed since [`Connection::unspoil`].
    pub(super) fn is_spoilt(&self) -> bool {
        self.spoilt.get()
    }

    /// From here on statements are asked about anew.
    pub(super) fn unspoil(&self) {
        self.spoilt.set(false);
    }

    /// Does `work` with another limit of the wait for each answer. The server's own limits stay.
    pub(super) fn with_patience<T>(
        &self,
        patience: Duration,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let usual = self.patience.replace(patience);
        let done = work();
        self.patience.set(usual);
        done
    }

    /// Runs statements without parameters.
    pub(super) fn batch(&self, sql: &str) -> Result<()> {
        self.wait(self.client.batch_execute(sql))
    }

    /// Runs statements without parameters, of which the last with a row gives a whole number.
    pub(super) fn number(&self, sql: &str) -> Result<i64> {
        let messages = self.wait(self.client.simple_query(sql))?;
        let number = messages.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row.get(0)?.parse()),
            _ => None,
        });
        number.ok_or(DatabaseError::NoRow)?.map_err(|_| DatabaseError::Column(0))
    }

    /// The statement, prepared before if it was needed before.
    fn prepare(&self, sql: &str) -> Result<Statement> {
        if let Some(statement) = self.prepared.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(self.client.prepare(&numbered(sql)))?;
        let mut prepared = self.prepared.borrow_mut();
        if prepared.len() >= MAX_PREPARED {
            prepared.clear();
        }
        prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Runs a statement without rows; how many rows it changed.
    pub(super) fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize> {
        let statement = self.prepare(sql)?;
        let changed = self.wait(self.client.execute(&statement, &given(values)))?;
        Ok(usize::try_from(changed).unwrap_or(usize::MAX))
    }

    /// A statement's rows.
    pub(super) fn rows(&self, sql: &str, values: &[Value<'_>]) -> Result<Vec<Row>> {
        let statement = self.prepare(sql)?;
        self.wait(self.client.query(&statement, &given(values)))
    }

    /// Waits for an answer, though not for ever.
    fn wait<T>(
        &self,
        answer: impl Future<Output = std::result::Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        let away = |why: String| DatabaseError::Away(self.server.clone(), why);
        let Some(runtime) = &self.runtime else { return Err(away("closed".to_owned())) };
        let patience = self.patience.get();
        let answer = runtime.block_on(async { tokio::time::timeout(patience, answer).await });
        let failure = match answer {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) if error.as_db_error().is_some() => failure(&error),
            Ok(Err(error)) => {
                self.lost.set(true);
                away(text_of(&error))
            }
            Err(_) => {
                self.lost.set(true);
                away(format!("no answer within {} s", patience.as_secs()))
            }
        };
        self.spoilt.set(true);
        Err(failure)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Waiting for the runtime's threads, as dropping it does, is forbidden where tasks run.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// What the server answered instead.
fn failure(error: &tokio_postgres::Error) -> DatabaseError {
    let state = error.code().map_or_else(String::new, |code| code.code().to_owned());
    DatabaseError::Postgres { state, text: text_of(error) }
}

fn given<'a>(values: &'a [Value<'a>]) -> Vec<&'a (dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}
