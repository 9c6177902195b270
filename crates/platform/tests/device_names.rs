//! Whose the name of a device is: an account's own name is that account's, also if another user registers it first.
#![allow(clippy::unwrap_used)]

mod common;

use common::World;
use fulmar_platform::{AdminCommand, Database, Role};
use serde_json::{Value, json};
use uuid::Uuid;

const DEVICES: &str = "/api/v1/north/instance";

fn add(world: &World, name: &str, (twin, role): (&str, Role)) {
    let (role, name) = (Some((twin.to_owned(), role)), name.to_owned());
    let password = Some(common::PASSWORD.to_owned());
    let command =
        AdminCommand::AddUser { name, display_name: None, server_admin: false, role, password };
    world.platform.administer(&command).unwrap();
}

fn may(world: &World, user: &str, publish: bool, topic: &str) -> bool {
    world.platform.may(user, publish, &format!("fulmar/north/{topic}"))
}

async fn register(world: &World, token: &str, device: &str) -> (u16, Value) {
    let answer =
        world.call(token, "PUT", &format!("{DEVICES}/{device}"), &json!({"kind": "van"})).await;
    (answer.status, answer.json)
}

/// A command to a device, and where it was.
async fn fill(world: &World, owner: &str, office: &str, device: &str) {
    let at = format!("{DEVICES}/{device}");
    let item =
        json!({"id": Uuid::new_v4(), "at": common::now(-5), "place": {"lat": 53.5, "lon": 10.0}});
    world.good(owner, "POST", &format!("{at}/telemetry"), json!({ "items": [item] })).await;
    world
        .good(office, "POST", &format!("{at}/command/send"), json!({"args": {"to": "here"}}))
        .await;
}

/// How many commands and positions the device has.
async fn contents(world: &World, token: &str, device: &str) -> (usize, usize) {
    let mut counts = Vec::new();
    for what in ["command", "telemetry"] {
        let answer = world.get(token, &format!("{DEVICES}/{device}/{what}")).await;
        assert_eq!(answer.status, 200, "{device}: {}", answer.json);
        counts.push(answer.json["items"].as_array().unwrap().len());
    }
    (counts[0], counts[1])
}

#[tokio::test]
async fn a_reader_cannot_put_itself_under_the_name_of_another_users_receiver() {
    let world = World::new();
    let (reader, office) = (world.log_in("north-reader").await, world.log_in("north-office").await);
    let own = "receiver/north-device/frame";
    // As another user of the server, too, whose account is in another twin, or as a name that looks like it.
    for name in
        ["north-device", "north-office", "south-device", "root", "North-Device", "NORTH-ADMIN"]
    {
        assert_eq!(register(&world, &reader, name).await.0, 403, "{name}");
        let frames = json!({"receiver": name, "frames": []});
        let sent = world.call(&reader, "POST", "/api/v1/north/frame", &frames).await;
        assert_eq!(sent.status, 403, "{name}");
        assert!(!may(&world, "north-reader", true, &format!("receiver/{name}/frame")), "{name}");
        assert!(!may(&world, "north-reader", false, &format!("instance/{name}/command")), "{name}");
        assert!(!may(&world, "north-device", true, "batch/north-reader"));
    }
    assert!(may(&world, "north-device", true, own), "the receiver is not silenced");
    assert!(may(&world, "north-device", false, "instance/north-device/command"));
    // What the office registers under the name of a device's account is that account's.
    let (status, shown) = register(&world, &office, "north-device").await;
    assert_eq!((status, &shown["user"]), (200, &json!("north-device")));
    assert_eq!(register(&world, &office, "south-device").await.0, 403, "not a member here");
    let device = world.log_in("north-device").await;
    assert_eq!(register(&world, &device, "north-device").await.0, 200);
    assert_eq!(register(&world, &device, "NORTH-DEVICE").await.0, 200, "its own in another case");
    fill(&world, &device, &office, "north-device").await;
    assert_eq!(contents(&world, &device, "north-device").await, (1, 1));
    assert_eq!(world.get(&reader, &format!("{DEVICES}/north-device/command")).await.status, 403);
}

#[tokio::test]
async fn a_new_account_has_its_name_and_nothing_of_who_registered_it_before() {
    let mut world = World::new();
    let (reader, office) = (world.log_in("north-reader").await, world.log_in("north-office").await);
    let admin = world.log_in("north-admin").await;
    assert_eq!(register(&world, &reader, "gw-1").await.0, 200);
    fill(&world, &reader, &office, "gw-1").await;
    let lost = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
    let told = std::sync::Arc::clone(&lost);
    world.platform.on_loss(move |losers| told.lock().extend(losers.keys().cloned()));
    while world.announced.try_recv().is_ok() {}
    add(&world, "gw-1", ("north", Role::Device));
    assert_eq!(*lost.lock(), ["north-reader"], "its subscriptions are looked at again");
    let cleared = world.announced.try_recv().unwrap();
    let position = "fulmar/north/instance/gw-1/position";
    assert_eq!((&*cleared.topic, cleared.payload.len(), cleared.retain), (position, 0, true));
    assert!(may(&world, "gw-1", true, "receiver/gw-1/frame"));
    assert!(may(&world, "gw-1", false, "instance/gw-1/command"));
    assert!(!may(&world, "north-reader", true, "receiver/gw-1/frame"));
    assert!(!may(&world, "north-reader", false, "instance/gw-1/command"));
    let gw = world.log_in("gw-1").await;
    assert_eq!(world.get(&gw, &format!("{DEVICES}/gw-1")).await.status, 404);
    assert_eq!(register(&world, &gw, "gw-1").await.0, 200);
    assert_eq!(contents(&world, &gw, "gw-1").await, (0, 0));
    // The reader still has what it sent, under another name.
    assert_eq!(contents(&world, &reader, "gw-1.2").await, (1, 1));
    // No other account looks like this one.
    let body = json!({"name": "GW-1", "password": common::PASSWORD, "role": "device"});
    assert_eq!(world.call(&admin, "POST", "/api/v1/north/user", &body).await.status, 409);
}

#[tokio::test]
async fn an_account_has_its_name_in_the_twins_of_which_it_becomes_a_member() {
    let world = World::new();
    let reader = world.log_in("north-reader").await;
    assert_eq!(register(&world, &reader, "gw-2").await.0, 200);
    add(&world, "gw-2", ("south", Role::Device));
    // Another utility's account silences nobody here.
    assert!(may(&world, "north-reader", true, "receiver/gw-2/frame"));
    assert_eq!(register(&world, &reader, "gw-2").await.0, 200);
    let (user, twin, role) = ("gw-2".to_owned(), "north".to_owned(), Role::Device);
    world.platform.administer(&AdminCommand::SetRole { user, twin, role }).unwrap();
    assert!(!may(&world, "north-reader", true, "receiver/gw-2/frame"));
    assert_eq!(register(&world, &reader, "gw-2").await.0, 403);
    assert!(may(&world, "gw-2", true, "receiver/gw-2/frame"));
}

#[tokio::test]
async fn a_removed_accounts_names_are_free_and_what_it_sent_is_nobodys() {
    let world = World::new();
    let office = world.log_in("north-office").await;
    add(&world, "ann", ("north", Role::Reader));
    let ann = world.log_in("ann").await;
    for name in ["ann", "phone"] {
        assert_eq!(register(&world, &ann, name).await.0, 200);
        fill(&world, &ann, &office, name).await;
    }
    world.platform.administer(&AdminCommand::RemoveUser { user: "ann".to_owned() }).unwrap();
    let shown = world.get(&office, &format!("{DEVICES}/phone")).await.json;
    assert_eq!(shown["user"], Value::Null);
    assert_eq!(contents(&world, &office, "phone").await, (1, 1), "what it sent stays");
    add(&world, "ann", ("north", Role::Reader));
    let ann = world.log_in("ann").await;
    for name in ["ann", "phone"] {
        for what in ["command", "telemetry"] {
            let answer = world.get(&ann, &format!("{DEVICES}/{name}/{what}")).await;
            assert!([403, 404].contains(&answer.status), "{name} {what}: {}", answer.json);
        }
        assert_eq!(register(&world, &ann, name).await.0, 200);
        assert_eq!(contents(&world, &ann, name).await, (0, 0), "{name}");
        assert_eq!(contents(&world, &office, &format!("{name}.2")).await, (1, 1), "{name}");
    }
}

#[tokio::test]
async fn an_account_has_its_name_back_from_a_database_of_an_earlier_version() {
    let world = World::new();
    if world.database != Database::File {
        return;
    }
    let (device, office) = (world.log_in("north-device").await, world.log_in("north-office").await);
    assert_eq!(register(&world, &device, "north-device").await.0, 200);
    assert_eq!(register(&world, &device, "phone").await.0, 200);
    fill(&world, &device, &office, "north-device").await;
    let statements = [
        "UPDATE instance SET account = 'north-reader' WHERE device = 'north-device'",
        "UPDATE instance SET account = 'gone' WHERE device = 'phone'",
    ];
    for statement in statements {
        let file = world.folder.path().join("platform.db");
        rusqlite::Connection::open(file).unwrap().execute(statement, ()).unwrap();
    }
    let world = world.restart();
    let reader = world.log_in("north-reader").await;
    assert!(!may(&world, "north-reader", false, "instance/north-device/command"));
    assert!(may(&world, "north-device", false, "instance/north-device/command"));
    assert_eq!(contents(&world, &reader, "north-device.2").await, (1, 1));
    let device = world.log_in("north-device").await;
    assert_eq!(register(&world, &device, "north-device").await.0, 200);
    assert_eq!(contents(&world, &device, "north-device").await, (0, 0));
    let shown = world.get(&reader, &format!("{DEVICES}/phone")).await.json;
    assert_eq!(shown["user"], Value::Null);
}
