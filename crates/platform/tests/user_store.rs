//! Users are in the data folder, and the rest in a database: what happens when the two do not belong together.
#![allow(clippy::unwrap_used)]

mod common;

use common::{World, server};
use fulmar_auth::ExternalUsers as _;
use fulmar_platform::{Admin, AdminCommand, Database, Role};
use serde_json::json;
use tempfile::TempDir;

const PHONE: &str = "/api/v1/north/instance/phone";

/// Changes the tables from outside.
fn sql(world: &World, statements: &str) {
    match &world.database {
        Database::File => {
            let file = world.folder.path().join("platform.db");
            rusqlite::Connection::open(file).unwrap().execute_batch(statements).unwrap();
        }
        Database::Postgres(address) => {
            let name = address.to_string().split(' ').next().unwrap().to_owned();
            server::sql_in(&name, &format!("SET search_path TO fulmar; {statements}"));
        }
    }
}

/// A folder without the users of the database.
fn another_folder(world: &World) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    if world.database == Database::File {
        let sqlite = rusqlite::Connection::open(world.folder.path().join("platform.db")).unwrap();
        let copy = folder.path().join("platform.db");
        sqlite.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    }
    folder
}

async fn register(world: &World, user: &str, device: &str) {
    let token = world.log_in(user).await;
    let path = format!("/api/v1/north/instance/{device}");
    world.good(&token, "PUT", &path, json!({"kind": "van"})).await;
}

fn refusal(folder: &TempDir, database: &Database) -> String {
    Admin::open(folder.path(), database).unwrap_err().to_string()
}

#[tokio::test]
async fn with_another_folder_nobody_loses_a_device_and_commands_name_the_right_one() {
    let world = World::new();
    register(&world, "north-reader", "phone").await;
    let other = another_folder(&world);
    assert!(refusal(&other, &world.database).contains("in another data folder"));
    world.platform.close();
    let World { folder, database, .. } = world;

    let wrong = World::open(other, database);
    assert!(!wrong.platform.knows("north-reader"));
    let role = |role| Some(("north".to_owned(), role));
    let add = |name: &str, wanted| AdminCommand::AddUser {
        name: name.to_owned(),
        display_name: None,
        server_admin: false,
        role: role(wanted),
        password: Some(common::PASSWORD.to_owned()),
    };
    for (name, role) in [("ann", Role::Reader), ("phone", Role::Device), ("bob", Role::Office)] {
        wrong.platform.administer(&add(name, role)).unwrap();
    }
    register(&wrong, "ann", "van").await;
    wrong.platform.administer(&AdminCommand::RemoveUser { user: "ann".to_owned() }).unwrap();
    let wrong = wrong.restart();
    let bob = wrong.log_in("bob").await;
    let owner = async |path: &str| wrong.get(&bob, path).await.json["user"].clone();
    assert_eq!(owner(PHONE).await, "north-reader");
    assert_eq!(owner("/api/v1/north/instance/van").await, json!(null), "removed while it served");
    assert!(refusal(&wrong.folder, &wrong.database).contains("in another data folder"));
    wrong.platform.close();
    // In a file it is a copy, which was tried with the wrong users, too.
    let file = wrong.folder.path().join("platform.db");
    if wrong.database == Database::File {
        let right = folder.path().join("platform.db");
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", right.display()));
        }
        rusqlite::Connection::open(&file)
            .unwrap()
            .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
            .unwrap();
        std::fs::copy(&file, &right).unwrap();
    }

    let right = World::open(folder, wrong.database);
    let reader = right.log_in("north-reader").await;
    assert_eq!(right.get(&reader, PHONE).await.json["user"], "north-reader");
    right.admin().remove_user("north-reader").unwrap();
}

#[tokio::test]
async fn a_command_leaves_users_of_an_earlier_version_where_they_are_and_the_server_moves_them() {
    let world = World::new();
    let before = world.admin().users().unwrap().len();
    sql(&world, "INSERT INTO account VALUES ('earlier', 'Earlier', '', 1, 1)");
    for _ in 0..2 {
        assert!(refusal(&world.folder, &world.database).contains("start the server"));
        assert!(
            !world.platform.knows("earlier")
                && !world.folder.path().join("platform-accounts.sql").exists()
        );
    }
    let world = world.restart();
    assert!(world.platform.is_server_admin("earlier") && world.platform.knows("north-reader"));
    assert_eq!(world.admin().users().unwrap().len(), before + 1);
}

#[tokio::test]
async fn a_membership_of_a_twin_that_is_not_there_gives_no_rights() {
    let world = World::new();
    let token = world.log_in("south-admin").await;
    assert_eq!(world.get(&token, "/api/v1/south/meter").await.status, 200);
    sql(&world, "DELETE FROM twin WHERE id = 'south'");
    let world = world.restart();
    assert_eq!(world.get(&token, "/api/v1/south/meter").await.status, 404);
    assert!(!world.platform.may("south-admin", false, "fulmar/south/alert"));
}
