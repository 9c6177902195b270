//! The handles that C has. Their numbers are never given again, so a freed one is noticed.

use std::collections::HashMap;
use std::sync::Arc;

use fulmar_client::Options;
use parking_lot::Mutex;

use crate::client::Handle;
use crate::failure::Failure;

/// The most handles of a process: far more than a program needs, and a bound for one that forgets to free them.
const MAX_HANDLES: usize = 1 << 20;

pub(crate) enum Object {
    Options(Box<Options>),
    Client(Arc<Handle>),
}

struct Table {
    last: u64,
    objects: Option<HashMap<u64, Object>>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { last: 0, objects: None });

pub(crate) fn insert(object: Object) -> Result<u64, Failure> {
    let mut table = TABLE.lock();
    let table = &mut *table;
    let objects = table.objects.get_or_insert_default();
    if objects.len() >= MAX_HANDLES {
        return Err(Failure::invalid(format!(
            "{MAX_HANDLES} handles are in use: free those that are not needed (fulmar_free)"
        )));
    }
    table.last += 1;
    objects.insert(table.last, object);
    Ok(table.last)
}

/// The client with this handle.
pub(crate) fn find(handle: u64) -> Result<Arc<Handle>, Failure> {
    match TABLE.lock().objects.as_ref().and_then(|objects| objects.get(&handle)) {
        Some(Object::Client(client)) => Ok(Arc::clone(client)),
        _ => Err(Failure::unknown_handle()),
    }
}

/// Changes the options with this handle.
pub(crate) fn change_options(
    handle: u64,
    change: impl FnOnce(&mut Options) -> Result<(), Failure>,
) -> Result<(), Failure> {
    match TABLE.lock().objects.as_mut().and_then(|objects| objects.get_mut(&handle)) {
        Some(Object::Options(options)) => change(options),
        _ => Err(Failure::unknown_handle()),
    }
}

/// Frees a handle. A thread that waits for its events learns that it is closed.
pub(crate) fn remove(handle: u64) -> Result<(), Failure> {
    let removed = TABLE.lock().objects.as_mut().and_then(|objects| objects.remove(&handle));
    match removed.ok_or_else(Failure::unknown_handle)? {
        Object::Client(client) => client.close(),
        Object::Options(_) => {}
    }
    Ok(())
}
