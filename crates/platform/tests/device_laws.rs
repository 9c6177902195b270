//! Random sequences of accounts, roles, registrations, removals, frames, positions and commands, by users who try every
//! name. The laws: what is sent in an account's name comes from that account, and what is read under a device's name was
//! sent by, or meant for, who reads it.
//!
//! `SEED=n` plays one sequence, `SEEDS=n` the first n.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, HashMap};

use common::World;
use fulmar_platform::{AdminAnswer, AdminCommand, Role};
use serde_json::{Value, json};
use uuid::Uuid;

const SEEDS: u64 = 5;
const STEPS: usize = 80;
/// Accounts come and go, and one account is called as what an account's name is given up for.
const ACCOUNTS: [&str; 5] = ["ann", "Ann", "bob", "gw-1", "gw-1.2"];
const DEVICES: [&str; 7] = ["ann", "Ann", "ANN", "bob", "gw-1", "gw-1.2", "van"];
const TWINS: [&str; 2] = ["north", "south"];
const ROLES: [Role; 5] = [Role::Reader, Role::Device, Role::Reader, Role::Viewer, Role::Office];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % n as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// An account from its making to its removal; another of its name has another number.
#[derive(Clone)]
struct Account {
    number: usize,
    token: String,
    roles: BTreeMap<&'static str, Role>,
}

struct Play {
    world: World,
    random: Random,
    root: String,
    made: usize,
    accounts: BTreeMap<&'static str, Account>,
    /// Which account has sent a position, and for which a command was; none for the office's own.
    sent: HashMap<String, Option<usize>>,
    steps: Vec<String>,
}

fn manages(role: Role) -> bool {
    matches!(role, Role::Admin | Role::Office)
}

impl Play {
    fn new(seed: u64) -> Play {
        let world = World::new();
        let mut play = Play {
            world,
            random: Random(seed),
            root: String::new(),
            made: 0,
            accounts: BTreeMap::new(),
            sent: HashMap::new(),
            steps: Vec::new(),
        };
        play.root = play.new_token("root");
        play
    }

    fn administer(&self, command: &AdminCommand) -> AdminAnswer {
        self.world.platform.administer(command).unwrap()
    }

    fn new_token(&self, user: &str) -> String {
        let command = AdminCommand::AddToken { user: user.to_owned(), others_end_in_ms: None };
        match self.administer(&command) {
            AdminAnswer::Token(token) => token,
            other => panic!("{other:?}"),
        }
    }

    fn check(&self, holds: bool, law: &str) {
        assert!(holds, "{law}\nafter:\n{}", self.steps.join("\n"));
    }

    /// A user at one of its twins.
    fn somebody(&mut self) -> Option<(&'static str, Account, &'static str, Role)> {
        let names: Vec<_> = self.accounts.keys().copied().collect();
        if names.is_empty() {
            return None;
        }
        let name = self.random.one(&names);
        let account = self.accounts[name].clone();
        let twins: Vec<_> = account.roles.iter().map(|(twin, role)| (*twin, *role)).collect();
        if twins.is_empty() {
            return None;
        }
        let (twin, role) = self.random.one(&twins);
        Some((name, account, twin, role))
    }

    /// The member of the twin whose name this is.
    fn member(&self, twin: &str, name: &str) -> Option<&Account> {
        self.accounts.get(name).filter(|account| account.roles.contains_key(twin))
    }

    async fn call(&self, token: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        let answer = self.world.call(token, method, &format!("/api/v1/{path}"), &body).await;
        (answer.status, answer.json)
    }

    async fn step(&mut self) {
        let device = self.random.one(&DEVICES);
        match self.random.below(20) {
            0..3 => self.add_account(),
            3 => self.remove_account(),
            4..6 => self.change_roles().await,
            6..10 => self.register(device).await,
            10..12 => self.send_position(device).await,
            12..14 => self.give_command(device).await,
            14..17 => self.read(device).await,
            17..19 => self.send_frames(device).await,
            _ => self.restart(),
        }
        self.check_all().await;
    }

    fn add_account(&mut self) {
        let (name, twin, role) =
            (self.random.one(&ACCOUNTS), self.random.one(&TWINS), self.random.one(&ROLES));
        let command = AdminCommand::AddUser {
            name: name.to_owned(),
            display_name: None,
            server_admin: false,
            role: Some((twin.to_owned(), role)),
            password: None,
        };
        let made = self.world.platform.administer(&command).is_ok();
        self.steps.push(format!("add account {name} to {twin} as {role:?}: {made}"));
        let alike = self.accounts.keys().find(|other| other.eq_ignore_ascii_case(name));
        self.check(made == alike.is_none(), "no two accounts look alike");
        if made {
            self.made += 1;
            let account = Account {
                number: self.made,
                token: self.new_token(name),
                roles: BTreeMap::from([(twin, role)]),
            };
            self.accounts.insert(name, account);
        }
    }

    fn remove_account(&mut self) {
        let name = self.random.one(&ACCOUNTS);
        if self.accounts.remove(name).is_some() {
            self.steps.push(format!("remove account {name}"));
            self.administer(&AdminCommand::RemoveUser { user: name.to_owned() });
        }
    }

    async fn change_roles(&mut self) {
        let (name, twin, role) =
            (self.random.one(&ACCOUNTS), self.random.one(&TWINS), self.random.one(&ROLES));
        let leaves = self.random.below(3) == 0;
        let Some(account) = self.accounts.get_mut(name) else { return };
        if leaves && account.roles.remove(twin).is_some() {
            self.steps.push(format!("{name} leaves {twin}"));
            let path = format!("{twin}/user/{name}");
            assert_eq!(self.call(&self.root, "DELETE", &path, Value::Null).await.0, 204);
        } else if !leaves {
            account.roles.insert(twin, role);
            self.steps.push(format!("{name} is {role:?} in {twin}"));
            let (user, twin) = (name.to_owned(), twin.to_owned());
            self.administer(&AdminCommand::SetRole { user, twin, role });
        }
    }

    async fn register(&mut self, device: &'static str) {
        let Some((name, account, twin, role)) = self.somebody() else { return };
        let path = format!("{twin}/instance/{device}");
        let before = self.call(&self.root, "GET", &path, Value::Null).await.1;
        let (status, shown) = self.call(&account.token, "PUT", &path, json!({"kind": "van"})).await;
        self.steps.push(format!("{name} registers {device} in {twin}: {status}"));
        if status != 200 {
            let own = device == name && role != Role::Viewer;
            return self.check(!own, "an account can register its own name");
        }
        let owner = shown["user"].as_str().unwrap();
        if before["user"].as_str() == Some(owner) {
            return self.check(owner == name || manages(role), "another's device is not changed");
        }
        self.check(before["user"].is_null(), "another's device is not taken over");
        let alike = self.accounts.keys().find(|other| other.eq_ignore_ascii_case(device));
        let good = alike.map_or(owner == name, |alike| {
            owner == *alike && (owner == name || manages(role) && owner == device)
        });
        self.check(good, "an account's name, and what looks like it, is that account's");
    }

    async fn send_position(&mut self, device: &'static str) {
        let Some((name, account, twin, role)) = self.somebody() else { return };
        let id = Uuid::new_v4().to_string();
        let path = format!("{twin}/instance/{device}/telemetry");
        let body = json!({"items": [{"id": id, "at": common::now(-5)}]});
        let (status, _) = self.call(&account.token, "POST", &path, body).await;
        self.steps.push(format!("{name} sends a position of {device} in {twin}: {status}"));
        if status == 200 {
            let other =
                self.member(twin, device).is_some_and(|other| other.number != account.number);
            self.check(
                !other || manages(role),
                "positions in an account's name are that account's",
            );
            self.sent.insert(id, (!manages(role)).then_some(account.number));
        }
    }

    async fn give_command(&mut self, device: &'static str) {
        let twin = self.random.one(&TWINS);
        let path = format!("{twin}/instance/{device}");
        let owner = self.call(&self.root, "GET", &path, Value::Null).await.1["user"].clone();
        let owner = owner.as_str().unwrap_or_default();
        let meant = self.member(twin, device).or_else(|| self.accounts.get(owner));
        let meant = meant.map(|account| account.number);
        let path = format!("{path}/command/go");
        let (status, command) = self.call(&self.root, "POST", &path, json!({})).await;
        self.steps.push(format!("the office gives {device} in {twin} a command: {status}"));
        if status == 202 {
            // What nobody has registered is nobody's to read.
            let id = command["id"].as_str().unwrap().to_owned();
            self.sent.insert(id, Some(meant.unwrap_or(usize::MAX)));
        }
    }

    async fn read(&mut self, device: &'static str) {
        let Some((name, account, twin, role)) = self.somebody() else { return };
        if !matches!(role, Role::Reader | Role::Device) {
            return;
        }
        for what in ["telemetry", "command"] {
            let path = format!("{twin}/instance/{device}/{what}");
            let (status, page) = self.call(&account.token, "GET", &path, Value::Null).await;
            self.steps.push(format!("{name} reads the {what} of {device} in {twin}: {status}"));
            for item in page["items"].as_array().into_iter().flatten() {
                let whose = self.sent[item["id"].as_str().unwrap()];
                let own = whose.is_none_or(|number| number == account.number);
                self.check(own, "what is read under a name is the reader's own");
            }
        }
    }

    async fn send_frames(&mut self, device: &'static str) {
        let Some((name, account, twin, role)) = self.somebody() else { return };
        let body = json!({"receiver": device, "frames": []});
        let path = format!("{twin}/frame");
        let (status, _) = self.call(&account.token, "POST", &path, body).await;
        self.steps.push(format!("{name} sends frames of {device} in {twin}: {status}"));
        let alike =
            self.accounts.keys().any(|other| other.eq_ignore_ascii_case(device) && *other != name);
        let is_its =
            self.call(&self.root, "GET", &format!("{twin}/instance/{device}"), Value::Null).await;
        let is_its = is_its.1["user"] == name;
        let good = status != 200 || !alike || is_its || manages(role);
        self.check(good, "frames in an account's name are that account's");
    }

    fn restart(&mut self) {
        self.steps.push("restart".to_owned());
        take_mut(&mut self.world, World::restart);
    }

    /// The laws about what everybody may do now.
    async fn check_all(&self) {
        for twin in TWINS {
            let all =
                self.call(&self.root, "GET", &format!("{twin}/instance"), Value::Null).await.1;
            for shown in all["items"].as_array().unwrap() {
                let (device, owner) = (shown["device"].as_str().unwrap(), shown["user"].as_str());
                let exists = owner.is_none_or(|owner| self.accounts.contains_key(owner));
                self.check(exists, "a removed account has no devices");
                let taken = self.member(twin, device).is_some() && owner != Some(device);
                self.check(!taken, "a member's name is the member's");
            }
            for (name, account) in &self.accounts {
                let Some(role) = account.roles.get(twin) else { continue };
                let may = |publish, rest: String| {
                    self.world.platform.may(name, publish, &format!("fulmar/{twin}/{rest}"))
                };
                for other in self.accounts.keys().filter(|other| self.member(twin, other).is_some())
                {
                    let sends = may(true, format!("receiver/{other}/frame"));
                    let hears = may(false, format!("instance/{other}/command"));
                    let batch = may(true, format!("batch/{other}"));
                    if name == other {
                        let works = *role == Role::Viewer || sends && hears;
                        self.check(works, &format!("{name} is not silenced in {twin}"));
                    } else if !manages(*role) {
                        let takes = sends || hears || batch;
                        self.check(
                            !takes,
                            &format!("{name} has nothing of {other}'s name in {twin}"),
                        );
                    }
                }
            }
        }
    }
}

/// Replaces a value by what is made of it.
fn take_mut(world: &mut World, change: impl FnOnce(World) -> World) {
    let blank = World::new();
    *world = change(std::mem::replace(world, blank));
}

#[tokio::test]
async fn what_is_in_an_accounts_name_is_that_accounts() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(SEEDS),
    };
    let begun = std::time::Instant::now();
    for seed in seeds {
        // Read if a law does not hold: a test's output is shown only then.
        println!("seed {seed}, after {:.1} s", begun.elapsed().as_secs_f64());
        let mut play = Play::new(seed);
        for _ in 0..STEPS {
            play.step().await;
        }
    }
}
