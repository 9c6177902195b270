//! What questions about readings cost: about as much as they answer, however many readings there are.
#![allow(clippy::unwrap_used)]

use rusqlite::StatementStatus;

use super::*;
use crate::meters::Method;
use crate::store::schema::MIGRATIONS;
use crate::store::sql::sqlite::APPLICATION_ID;
use crate::store::sql::{Database, Purpose};
use crate::store::{DATABASE_FILE, Store};

const LIST: Uuid = Uuid::from_u128(0xa);
const LIMIT: usize = 50;

/// 20,000 readings of 274 meters. A quarter are a list's, a quarter photos; 20 are both.
const FILL: &str = "
    INSERT INTO twin (id, name, created_at) VALUES ('t', 'T', 0);
    INSERT INTO meter (twin, id, medium, unit, register_digits, changed_at, revision)
        WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 273)
        SELECT 't', 'm' || i, 'water', 'm3', 5, 0, 1 FROM n;
    INSERT INTO reading (twin, id, meter, at, value, unit, method, implausible_confirmed, work_list, reader,
                         received_at, flags, contested)
        WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 19999)
        SELECT 't', '00000000-0000-4000-8000-' || substr('000000000000' || i, length('' || i) + 1, 12),
               'm' || (i % 274), i, i / 100, 'm3', CASE WHEN i % 4 = 1 OR i % 1000 = 7 THEN 'photo' ELSE 'radio' END,
               0, CASE WHEN i % 4 = 3 THEN '00000000-0000-0000-0000-00000000000a' END, 'ann', 0, '', i % 1000 = 5
        FROM n;";

/// What is asked for, and where a later page begins.
#[derive(Clone, Debug, Default)]
struct Question {
    query: ReadingQuery,
    after: Option<(Time, i64)>,
}

/// Each combination of what can be asked for, at the beginning and at a later page.
fn questions() -> Vec<Question> {
    let mut all = vec![Question::default()];
    let mut each = |choices: &[&dyn Fn(&mut Question)]| {
        let more = all.iter().flat_map(|query| {
            choices.iter().map(|choose| {
                let mut query = query.clone();
                choose(&mut query);
                query
            })
        });
        all = all.iter().cloned().chain(more.collect::<Vec<_>>()).collect();
    };
    each(&[&|asked| asked.query.meter = Some("m7".parse().unwrap())]);
    each(&[&|asked| asked.query.work_list = Some(LIST)]);
    each(&[&|Question { query, .. }| {
        (query.since, query.until) = (Some(Time(9_000)), Some(Time(12_000)))
    }]);
    each(&[&|asked| asked.query.method = Some(Method::Photo), &|asked| {
        asked.query.method = Some(Method::Manual)
    }]);
    each(&[&|asked| asked.query.conflict = Some(true), &|asked| {
        asked.query.conflict = Some(false)
    }]);
    each(&[&|asked| asked.query.order = Some(Order::Desc)]);
    each(&[&|asked| asked.after = Some((Time(10_000), 10_000))]);
    all
}

/// Changes of the tables without the last one about readings.
const BEFORE: usize = 5;

/// A folder as the version before that change left it.
fn of_the_version_before() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let old = rusqlite::Connection::open(folder.path().join(DATABASE_FILE)).unwrap();
    let before = &MIGRATIONS[..BEFORE];
    before.iter().for_each(|migration| old.execute_batch(migration).unwrap());
    old.pragma_update(None, "user_version", before.len()).unwrap();
    old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
    old.execute_batch(FILL).unwrap();
    folder
}

#[test]
fn no_question_looks_at_many_more_readings_than_it_answers() {
    let folder = of_the_version_before();
    let store = Store::open(folder.path(), &Database::File, Purpose::Server).unwrap();
    let asked = store.write_now(|db| {
        let Some(connection) = db.sqlite() else { unreachable!("it is a file") };
        let (mut asked, mut slow) = (0, Vec::new());
        for Question { query, after } in questions() {
            let (filter, order) = conditions("t", &query, after);
            let sql = filter.sql(&selected(), order);
            let steps =
                || connection.prepare_cached(&sql).unwrap().get_status(StatementStatus::VmStep);
            let before = steps();
            let found = list(db.within("t"), &query, after, LIMIT)?.len();
            // Some 100 steps of SQLite's machine a reading; to look at a quarter of all takes 30,000.
            let passed = steps() - before;
            if passed > 12_000 {
                slow.push(format!("{passed} steps for {found} of {query:?} after {after:?}"));
            }
            asked += 1;
        }
        Ok((asked, slow))
    });
    assert_eq!(asked.unwrap(), (288, Vec::new()));
}
