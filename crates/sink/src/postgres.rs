//! Rows in a table of PostgreSQL: a batch is one statement, and so one transaction; what has an identifier that is there
//! is not added again. All values go as text, which the server converts to the columns' types.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Context as _;
use fulmar_config::{FieldType, Sink, set};
use fulmar_postgres::{Address, ConnectError, SETTINGS, text_of};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Statement};

use crate::mapping::{Mapping, Record, Value};
use crate::target::Fault;

/// Longest time of a batch, connecting included.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Names of a table's columns, with their types. Without their lengths: a longer text is refused, not cut.
const TYPES: &str = "SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped";

/// A table in a server.
pub(crate) struct Table {
    address: Address,
    /// Quoted, with its schema.
    name: String,
    /// Quoted name and SQL type of each column: identifier, time, topic, those of the mapping.
    columns: Vec<(String, &'static str)>,
    connection: Option<(Client, Statement)>,
}

/// The unique indexes of a table, as lists of columns.
const UNIQUE: &str = "SELECT string_agg(a.attname, ',' ORDER BY a.attname) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indpred IS NULL GROUP BY i.indexrelid";

impl Table {
    /// The table of these settings. The server is not asked yet.
    ///
    /// # Errors
    /// The address or the file of its password cannot be used.
    pub(crate) fn new(sink: &Sink, mapping: &Mapping) -> anyhow::Result<Table> {
        let password = Sink::read_secret(&sink.password_file).context("password_file")?;
        let address = Address::parse(&sink.url.0, password.as_deref(), set(&sink.ca_file));
        let address = address.map_err(|error| anyhow::anyhow!("url: {error}"))?;
        let own = [("id", "text"), ("at", "timestamptz"), ("topic", "text")].into_iter();
        let mapped = mapping.columns.iter().map(|(name, field)| (&**name, sql_type(field.r#type)));
        Ok(Table {
            address,
            name: sink.table.split('.').map(quoted).collect::<Vec<_>>().join("."),
            columns: own.chain(mapped).map(|(name, kind)| (quoted(name), kind)).collect(),
            connection: None,
        })
    }

    /// Writes a batch.
    pub(crate) async fn write(&mut self, records: &[Record]) -> Result<(), Fault> {
        let written = tokio::time::timeout(TIMEOUT, self.insert(records)).await;
        let late = |_| Err(Fault::Temporary(format!("no answer in {TIMEOUT:?}")));
        let outcome = written.unwrap_or_else(late);
        if !matches!(outcome, Ok(()) | Err(Fault::Message(_))) {
            // The next one looks at the table again.
            self.connection = None;
        }
        outcome
    }

    async fn insert(&mut self, records: &[Record]) -> Result<(), Fault> {
        let there = self.connection.take().filter(|(client, _)| !client.is_closed());
        let (client, statement) = match there {
            Some(connection) => self.connection.insert(connection),
            None => {
                let connection = self.connect().await?;
                self.connection.insert(connection)
            }
        };
        let text = |record: &Record, at: usize| match at {
            0 => Some(record.id.clone()),
            1 => Some(Value::Time(record.at).text()),
            2 => Some(record.topic.clone()),
            _ => record.values[at - 3].as_ref().map(|value| match value {
                Value::Bytes(bytes) => format!("\\x{}", fulmar_text::hex::encode(bytes)),
                value => value.text(),
            }),
        };
        let column = |at| records.iter().map(|record| text(record, at)).collect();
        let lists: Vec<Vec<Option<String>>> = (0..self.columns.len()).map(column).collect();
        let lists: Vec<&(dyn ToSql + Sync)> = lists.iter().map(|list| list as _).collect();
        client.execute(statement, &lists).await.map_err(|error| fault(&error))?;
        Ok(())
    }

    async fn connect(&self) -> Result<(Client, Statement), Fault> {
        let client = self.address.connect().await.map_err(|error| match error {
            ConnectError::Failed(error) => match fault(&error) {
                Fault::Message(text) => Fault::Target(text),
                fault => fault,
            },
            ConnectError::Setting(text) => Fault::Target(text),
            ConnectError::Silent => Fault::Temporary(error.to_string()),
        })?;
        // No message is to blame yet.
        let failed = |error: Error| match fault(&error) {
            Fault::Message(text) => Fault::Temporary(text),
            fault => fault,
        };
        client.batch_execute(SETTINGS).await.map_err(failed)?;
        let exists = "SELECT to_regclass($1) IS NOT NULL";
        let exists = client.query_one(exists, &[&self.name]).await.map_err(failed)?;
        if !exists.get::<_, bool>(0) {
            let columns =
                self.columns.iter().map(|(name, kind)| format!("{name} {kind} NOT NULL, "));
            let (own, mapped) = (columns.take(3).collect::<String>(), self.columns.iter().skip(3));
            let mapped: String = mapped.map(|(name, kind)| format!("{name} {kind}, ")).collect();
            let create =
                format!("CREATE TABLE IF NOT EXISTS {} ({own}{mapped}PRIMARY KEY (id))", self.name);
            client.batch_execute(&create).await.map_err(failed)?;
            tracing::info!(table = self.name, server = %self.address, "sink: table created");
        }
        let unique = client.query(UNIQUE, &[&self.name]).await.map_err(failed)?;
        let unique: Vec<String> = unique.iter().map(|row| row.get(0)).collect();
        let key = ["id", "at,id"].into_iter().find(|key| unique.iter().any(|known| known == key));
        let key = key.ok_or_else(|| {
            Fault::Target(format!(
                "table {} has no unique index on (id), or on (id, at), by which repeated messages are recognised: \
                 CREATE UNIQUE INDEX ON {} (id)",
                self.name, self.name
            ))
        })?;
        let types = client.query(TYPES, &[&self.name]).await.map_err(failed)?;
        let types: HashMap<String, String> =
            types.iter().map(|row| (quoted(row.get(0)), row.get(1))).collect();
        let statement = client.prepare(&self.statement(key, &types)).await.map_err(failed)?;
        Ok((client, statement))
    }

    /// The statement for a table with this key and these types of columns. Values are converted to the types that the table
    /// has: what does not fit is refused, not rounded.
    fn statement(&self, key: &str, types: &HashMap<String, String>) -> String {
        let list = |text: &dyn Fn(usize) -> String| {
            (0..self.columns.len()).map(text).collect::<Vec<_>>().join(", ")
        };
        format!(
            "INSERT INTO {} ({}) SELECT {} FROM unnest({}) AS v({}) ON CONFLICT ({key}) DO NOTHING",
            self.name,
            list(&|at| self.columns[at].0.clone()),
            list(&|at| {
                let (name, wanted) = &self.columns[at];
                format!("v{at}::{}", types.get(name).map_or(*wanted, String::as_str))
            }),
            list(&|at| format!("${}::text[]", at + 1)),
            list(&|at| format!("v{at}")),
        )
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn sql_type(of: FieldType) -> &'static str {
    match of {
        FieldType::Number => "double precision",
        FieldType::Integer => "bigint",
        FieldType::Boolean => "boolean",
        FieldType::Text => "text",
        FieldType::Time => "timestamptz",
        FieldType::Json => "jsonb",
        FieldType::Bytes => "bytea",
    }
}

/// Whose fault an error is, by the class of its SQLSTATE.
fn fault(error: &Error) -> Fault {
    let text = text_of(error);
    let Some(state) = error.code().map(|state| state.code().to_owned()) else {
        return Fault::Temporary(text);
    };
    match state.get(..2).unwrap_or_default() {
        // Connection, resources, an operator's intervention, conflicts between transactions, locks, a failing disk, and a
        // server that is read-only while another one takes over.
        "08" | "53" | "57" | "40" | "55" | "58" | "25" | "XX" => Fault::Temporary(text),
        // Values, constraints, what triggers and views refuse; limits such as that of an index.
        "22" | "23" | "44" | "54" | "P0" => Fault::Message(text),
        _ => {
            let next = match &*state {
                "42501" => "GRANT the user INSERT and SELECT on the table, or CREATE on its schema",
                "28000" | "28P01" => "correct the user in url, or its password",
                "3D000" => "create the database",
                "42703" | "42804" => "add the column to the table, or correct the mapping",
                _ => "correct the table or the settings of the sink",
            };
            Fault::Target(format!("{text}: {next}"))
        }
    }
}
