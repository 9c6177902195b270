//! The PostgreSQL server that tests are given, if they are.

use fulmar_platform::Database;
use tokio_postgres::{NoTls, SimpleQueryMessage};

fn address() -> Option<String> {
    std::env::var("FULMAR_TEST_POSTGRES").ok()
}

/// A database's name, of this test program alone.
pub(crate) fn name(what: &str) -> String {
    format!("test_{}_{what}", std::process::id())
}

/// The database of this name, if there is a server.
pub(crate) fn database(name: &str) -> Option<Database> {
    let address = format!("{}/{name}", address()?);
    Some(Database::parse(&address, None, None).unwrap())
}

/// Runs a statement as the server's administrator; the first column of the first row.
pub(crate) fn sql(statement: &str) -> Option<String> {
    sql_in("postgres", statement)
}

/// The same in this database.
pub(crate) fn sql_in(database: &str, statement: &str) -> Option<String> {
    let address = format!("{}/{database}", address().unwrap());
    let statement = statement.to_owned();
    // Tests are tasks, which must not wait.
    let done = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let (client, connection) = tokio_postgres::connect(&address, NoTls).await.unwrap();
            tokio::spawn(connection);
            let messages = client.simple_query(&statement).await.unwrap();
            messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            })
        })
    });
    done.join().unwrap()
}
