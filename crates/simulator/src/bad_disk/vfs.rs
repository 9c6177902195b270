//! [`Disk`] as SQLite's file layer: a `sqlite3_vfs` whose functions find the disk by the folder of the given path. It
//! becomes the process' default, so that the store needs no configuration for it; files in a folder without a disk
//! cannot be opened.
//!
//! Locks are not kept: one process, one connection. So what SQLite shares between connections (the index of its log,
//! without `locking_mode=EXCLUSIVE`) is memory of the one connection.
//! The interface is that of <https://www.sqlite.org/c3ref/vfs.html>.
#![allow(
    unsafe_code,
    reason = "SQLite's file layer is a table of C functions over pointers that SQLite allocates"
)]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use rusqlite::ffi;

use super::disk::{Disk, Refusal};

/// Longest path, with its end.
const MAX_PATH: usize = 1024;

/// Disks by folder. SQLite's registration is one for the process, and so is this.
static MOUNTED: Mutex<BTreeMap<PathBuf, Arc<Disk>>> = Mutex::new(BTreeMap::new());
static TEMPORARY: AtomicU64 = AtomicU64::new(0);
static DRAWN: AtomicU64 = AtomicU64::new(1);
static REGISTERED: Once = Once::new();

/// Keeps a disk mounted.
#[derive(Debug)]
pub struct Mount {
    folder: PathBuf,
}

impl Drop for Mount {
    fn drop(&mut self) {
        MOUNTED.lock().remove(&self.folder);
    }
}

impl Mount {
    /// Puts another disk there. Files that are open stay with the old one.
    pub fn replace(&self, disk: Arc<Disk>) {
        MOUNTED.lock().insert(self.folder.clone(), disk);
    }
}

/// From now on SQLite finds the files of `folder` on `disk`.
pub fn mount(folder: &Path, disk: Arc<Disk>) -> Mount {
    REGISTERED.call_once(register);
    MOUNTED.lock().insert(folder.to_owned(), disk);
    Mount { folder: folder.to_owned() }
}

/// What SQLite allocates for an open file: its own part first, then ours.
#[repr(C)]
struct Handle {
    base: ffi::sqlite3_file,
    open: *mut Open,
}

struct Open {
    disk: Arc<Disk>,
    name: String,
    temporary: bool,
    /// What other connections would share.
    regions: Mutex<Regions>,
}

/// Memory that stays where it is until SQLite gives it back: each region from `Box::into_raw`.
#[derive(Default)]
struct Regions(Vec<*mut [u64]>);

impl Drop for Regions {
    fn drop(&mut self) {
        for region in self.0.drain(..) {
            // SAFETY: it is from `Box::into_raw`, and SQLite uses none after it has closed or unmapped the file.
            drop(unsafe { Box::from_raw(region) });
        }
    }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(lock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(map_region),
    xShmLock: Some(lock_region),
    xShmBarrier: Some(barrier),
    xShmUnmap: Some(unmap_regions),
    xFetch: None,
    xUnfetch: None,
};

fn register() {
    // SAFETY: SQLite has a layer of its own, which stays.
    let own = unsafe { *ffi::sqlite3_vfs_find(ptr::null()) };
    // Time and pauses are as there.
    let vfs = ffi::sqlite3_vfs {
        iVersion: 1,
        szOsFile: size_of::<Handle>() as c_int,
        mxPathname: MAX_PATH as c_int,
        pNext: ptr::null_mut(),
        zName: c"bad_disk".as_ptr(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xRandomness: Some(randomness),
        ..own
    };
    // SAFETY: SQLite keeps the pointer for the life of the process, and so does the leaked box.
    let result = unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 1) };
    assert_eq!(result, ffi::SQLITE_OK);
}

/// The disk and the name of the file at `path`.
fn find(path: &Path) -> Option<(Arc<Disk>, String)> {
    let disk = Arc::clone(MOUNTED.lock().get(path.parent()?)?);
    Some((disk, path.file_name()?.to_str()?.to_owned()))
}

/// # Safety
/// `name` is a C string, as SQLite gives it, or null.
unsafe fn path<'a>(name: *const c_char) -> Option<&'a Path> {
    if name.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_str().ok().map(Path::new)
}

/// # Safety
/// `file` was opened by [`open`] and is not closed.
unsafe fn opened<'a>(file: *mut ffi::sqlite3_file) -> &'a Open {
    // SAFETY: SQLite hands back the memory that `open` has filled, until `close`.
    unsafe { &*(*file.cast::<Handle>()).open }
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    flags_out: *mut c_int,
) -> c_int {
    let handle = file.cast::<Handle>();
    // SAFETY: SQLite has allocated `szOsFile` bytes; without methods it does not call `close`.
    unsafe { (*handle).base.pMethods = ptr::null() };
    // SAFETY: SQLite gives a name or null.
    let (disk, name, temporary) = match unsafe { path(name) } {
        Some(path) => {
            let Some((disk, name)) = find(path) else { return ffi::SQLITE_CANTOPEN };
            (disk, name, flags & ffi::SQLITE_OPEN_DELETEONCLOSE != 0)
        }
        None => {
            let number = TEMPORARY.fetch_add(1, Ordering::Relaxed);
            (Arc::new(Disk::default()), format!("temporary-{number}"), true)
        }
    };
    // The store makes the database's file before SQLite opens it.
    let creates = ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_MAIN_DB;
    if !disk.open(&name, temporary || flags & creates != 0) {
        return ffi::SQLITE_CANTOPEN;
    }
    let open = Box::into_raw(Box::new(Open { disk, name, temporary, regions: Mutex::default() }));
    // SAFETY: as above; `flags_out` may be null.
    unsafe {
        (*handle).open = open;
        (*handle).base.pMethods = &raw const METHODS;
        if !flags_out.is_null() {
            *flags_out = flags;
        }
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    // SAFETY: SQLite closes each file once; the box is the one of `open`.
    let open = unsafe { Box::from_raw((*file.cast::<Handle>()).open) };
    if open.temporary {
        // A file that cannot be removed is nobody's loss.
        let _ = open.disk.remove(&open.name, true);
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    into: *mut c_void,
    length: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file and a buffer of that length.
    let (open, into) =
        unsafe { (opened(file), slice::from_raw_parts_mut(into.cast::<u8>(), length as usize)) };
    match open.disk.read(&open.name, at as usize, into) {
        Ok(there) if there == into.len() => ffi::SQLITE_OK,
        Ok(there) => {
            // SQLite wants the rest to be zero.
            into[there..].fill(0);
            ffi::SQLITE_IOERR_SHORT_READ
        }
        Err(_) => ffi::SQLITE_IOERR_READ,
    }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    length: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file and a buffer of that length.
    let (open, bytes) =
        unsafe { (opened(file), slice::from_raw_parts(bytes.cast::<u8>(), length as usize)) };
    done(open.disk.write(&open.name, at as usize, bytes), ffi::SQLITE_IOERR_WRITE)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: ffi::sqlite3_int64) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { opened(file) };
    done(open.disk.set_length(&open.name, length as usize), ffi::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { opened(file) };
    done(open.disk.sync(&open.name), ffi::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn file_size(
    file: *mut ffi::sqlite3_file,
    size: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: an open file and a place for the answer.
    unsafe {
        let open = opened(file);
        *size = open.disk.length(&open.name) as ffi::sqlite3_int64;
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn lock(_: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(_: *mut ffi::sqlite3_file, is: *mut c_int) -> c_int {
    // SAFETY: a place for the answer.
    unsafe { *is = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn file_control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn map_region(
    file: *mut ffi::sqlite3_file,
    number: c_int,
    bytes: c_int,
    extend: c_int,
    region: *mut *mut c_void,
) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { opened(file) };
    let Regions(regions) = &mut *open.regions.lock();
    let number = number as usize;
    while regions.len() <= number && extend != 0 {
        // Of u64, because SQLite wants it aligned.
        regions.push(Box::into_raw(vec![0_u64; (bytes as usize).div_ceil(8)].into_boxed_slice()));
    }
    let there = regions.get(number).map_or(ptr::null_mut(), |region| region.cast::<c_void>());
    // SAFETY: a place for the answer.
    unsafe { *region = there };
    ffi::SQLITE_OK
}

unsafe extern "C" fn lock_region(_: *mut ffi::sqlite3_file, _: c_int, _: c_int, _: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn barrier(_: *mut ffi::sqlite3_file) {
    std::sync::atomic::fence(Ordering::SeqCst);
}

unsafe extern "C" fn unmap_regions(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: an open file.
    let open = unsafe { opened(file) };
    *open.regions.lock() = Regions::default();
    ffi::SQLITE_OK
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    // As SQLite's own layer for Unix says.
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    // As SQLite's own layer for Unix says.
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn delete(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_folder: c_int,
) -> c_int {
    // SAFETY: SQLite gives a name.
    match unsafe { path(name) }.and_then(find) {
        Some((disk, name)) => done(disk.remove(&name, sync_folder != 0), ffi::SQLITE_IOERR_DELETE),
        None => ffi::SQLITE_IOERR_DELETE,
    }
}

unsafe extern "C" fn access(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    answer: *mut c_int,
) -> c_int {
    // SAFETY: SQLite gives a name and a place for the answer.
    unsafe {
        let there = path(name).and_then(find).is_some_and(|(disk, name)| {
            // An empty journal is none, as for SQLite's own layer.
            disk.exists(&name) && (flags != ffi::SQLITE_ACCESS_EXISTS || disk.length(&name) > 0)
        });
        *answer = c_int::from(there);
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn full_pathname(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    length: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite gives a name and a buffer of that length.
    unsafe {
        let bytes = CStr::from_ptr(name).to_bytes_with_nul();
        if bytes.len() > length as usize {
            return ffi::SQLITE_CANTOPEN;
        }
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len());
    }
    ffi::SQLITE_OK
}

/// Not random: a run is to be the same each time.
unsafe extern "C" fn randomness(
    _: *mut ffi::sqlite3_vfs,
    length: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite gives a buffer of that length.
    let out = unsafe { slice::from_raw_parts_mut(out.cast::<u8>(), length as usize) };
    fastrand::Rng::with_seed(DRAWN.fetch_add(1, Ordering::Relaxed)).fill(out);
    length
}

fn done(result: Result<(), Refusal>, failed: c_int) -> c_int {
    match result {
        Ok(()) => ffi::SQLITE_OK,
        Err(Refusal::Full) => ffi::SQLITE_FULL,
        Err(Refusal::Failed) => failed,
    }
}
