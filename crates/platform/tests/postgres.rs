//! What only a PostgreSQL server can do to the platform. Without FULMAR_TEST_POSTGRES there is none and
//! nothing to test; `make test` sets it (`make test-postgres`).
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod common;

use common::{PASSWORD, World, reading, server};
use fulmar_auth::ExternalUsers as _;
use fulmar_platform::{Admin, Database, Platform, Role, Settings, UserToAdd};
use serde_json::json;

fn there_is_a_server() -> bool {
    server::database("postgres").is_some()
}

/// Ends all of the platform's connections, as a server that stops does.
fn cut(world: &World) {
    let Database::Postgres(address) = &world.database else { panic!("a file") };
    let name = address.to_string();
    let name = name.split(' ').next().unwrap();
    server::sql(&format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = '{name}'"
    ));
}

#[tokio::test]
async fn one_server_alone_uses_a_database_and_commands_work_beside_it() {
    if !there_is_a_server() {
        return;
    }
    let world = World::new();
    let settings = Settings { database: world.database.clone(), ..Settings::default() };
    let error = Platform::open(world.folder.path(), settings).unwrap_err().to_string();
    assert!(error.contains("another Fulmar server uses this database"), "{error}");

    let role = Some(("north", Role::Viewer));
    let user = UserToAdd { name: "beside", display_name: None, server_admin: false, role };
    world.admin().add_user(&user, PASSWORD).unwrap();
    let body = json!({"user": "beside", "password": PASSWORD});
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while world.call("", "POST", "/api/v1/session", &body).await.status != 201 {
        assert!(std::time::Instant::now() < deadline, "the server does not see the new user");
        // Wrong logins are counted: not again at once.
        tokio::time::sleep(std::time::Duration::from_millis(600)).await;
    }
}

#[tokio::test]
async fn tables_are_upgraded_without_the_time_limit_of_requests() {
    if !there_is_a_server() {
        return;
    }
    let name = server::name("upgraded");
    server::sql(&format!("CREATE DATABASE {name}"));
    // Notes the limits under which tables get indexes, which takes long where there are many rows.
    server::sql_in(
        &name,
        "CREATE TABLE seen (statements text, locks text);
         CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen
                 VALUES (current_setting('statement_timeout'), current_setting('lock_timeout')); END $$;
         CREATE EVENT TRIGGER note ON ddl_command_end WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION note()",
    );
    let folder = tempfile::tempdir().unwrap();
    let database = server::database(&name).unwrap();
    let admin = Admin::open(folder.path(), &database).unwrap();
    let seen = || {
        let sql = "SELECT string_agg(DISTINCT statements || ' ' || locks, ', ') FROM public.seen";
        server::sql_in(&name, sql).unwrap()
    };
    assert_eq!(seen(), "0 10s");

    // And afterwards with it.
    server::sql_in(
        &name,
        "TRUNCATE public.seen;
         CREATE FUNCTION note_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen
                 VALUES (current_setting('statement_timeout'), current_setting('lock_timeout'));
             RETURN NEW; END $$;
         CREATE TRIGGER note AFTER INSERT ON fulmar.twin EXECUTE FUNCTION note_row()",
    );
    admin.add_twin("north", None, false).unwrap();
    assert_eq!(seen(), "20s 10s");
}

#[tokio::test]
async fn connections_that_are_lost_come_back_and_nothing_is_stored_twice() {
    if !there_is_a_server() {
        return;
    }
    let world = World::new();
    let token = world.log_in("north-admin").await;
    world.good(&token, "POST", "/api/v1/north/meter", json!({"id": "m"})).await;
    for n in 0..8_u32 {
        cut(&world);
        let value = f64::from(n);
        let body = reading(n.into(), "m", &format!("2026-11-21T10:00:0{n}Z"), value);
        let body = json!({"items": [body]});
        // Until the server has ended the connection that was cut, that one holds the lock.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let stored = loop {
            let stored = world.call(&token, "POST", "/api/v1/north/reading", &body).await;
            if stored.status != 503 || std::time::Instant::now() > deadline {
                break stored;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        assert_eq!(stored.status, 200, "a transaction begins on a new connection: {}", stored.json);
        cut(&world);
        let read = world.good(&token, "GET", "/api/v1/north/reading", json!(null)).await;
        assert_eq!(read["items"].as_array().unwrap().len(), n as usize + 1);
    }
}

#[tokio::test]
async fn while_the_database_is_away_there_is_a_503_and_then_all_is_well() {
    if !there_is_a_server() {
        return;
    }
    let world = World::new();
    let token = world.log_in("north-admin").await;
    let Database::Postgres(address) = &world.database else { panic!("a file") };
    let name = address.to_string().split(' ').next().unwrap().to_owned();
    server::sql(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
    cut(&world);
    let meter = json!({"id": "m"});
    for answer in [
        world.call(&token, "POST", "/api/v1/north/meter", &meter).await,
        world.get(&token, "/api/v1/north/meter").await,
    ] {
        assert_eq!((answer.status, answer.kind.as_str()), (503, "application/problem+json"));
        assert!(answer.json["detail"].as_str().unwrap().contains("database"), "{}", answer.json);
    }
    server::sql(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while world.call(&token, "POST", "/api/v1/north/meter", &meter).await.status >= 300 {
        assert!(std::time::Instant::now() < deadline, "the database is not used again");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let meters = world.good(&token, "GET", "/api/v1/north/meter", json!(null)).await;
    assert_eq!(meters["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn what_no_text_column_can_hold_is_refused() {
    if !there_is_a_server() {
        return;
    }
    let world = World::new();
    let token = world.log_in("north-admin").await;
    let body = json!({"id": "m", "note": "a\u{0}b"});
    let answer = world.call(&token, "POST", "/api/v1/north/meter", &body).await;
    assert_eq!(answer.status, 422, "{}", answer.json);
}

#[tokio::test]
async fn accounts_of_an_earlier_version_move_to_the_folder_and_no_other_folder_gets_them() {
    if !there_is_a_server() {
        return;
    }
    let world = World::new();
    let Database::Postgres(address) = &world.database else { panic!("a file") };
    let name = address.to_string().split(' ').next().unwrap().to_owned();
    let earlier = "INSERT INTO fulmar.account VALUES ('old', 'Old''s', 'no hash', 0, 1);
        INSERT INTO fulmar.member VALUES ('north', 'old', 'viewer');
        INSERT INTO fulmar.session VALUES ('of-old', 'old', 1, 99999999999999)";
    server::sql_in(&name, earlier);
    let world = world.restart();
    let is_here = |platform: &Platform| {
        platform.is_good("of-old") && platform.may("old", false, "fulmar/north/reading")
    };
    assert!(is_here(&world.platform) && world.platform.is_server_admin("root"));
    let left = || server::sql_in(&name, "SELECT count(*)::text FROM fulmar.account").unwrap();
    assert_eq!(left(), "0");
    world.platform.close();
    let (elsewhere, database) = (tempfile::tempdir().unwrap(), world.database.clone());
    let settings = Settings { database, ..Settings::default() };
    let (platform, _announced) = Platform::open(elsewhere.path(), settings).unwrap();
    assert!(platform.has_no_users(), "its users are in the other folder");
    platform.close();
    let copy = std::fs::read_to_string(world.folder.path().join("platform-accounts.sql")).unwrap();
    server::sql_in(&name, &format!("SET search_path TO fulmar; {copy}"));
    assert_eq!(left(), "1", "for the version before");
}
