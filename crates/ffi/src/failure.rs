//! Failures of a call: a code for the program, and a text for a person.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An argument cannot be used, or the handle is none.
pub(crate) const INVALID: c_int = -1;
/// It did not happen in time.
pub(crate) const TIMEOUT: c_int = -2;
/// The client has ended.
pub(crate) const CLOSED: c_int = -3;
/// Another thread waits for the events of this client.
pub(crate) const BUSY: c_int = -4;
/// A fault of the library.
pub(crate) const INTERNAL: c_int = -5;

pub(crate) struct Failure {
    code: c_int,
    text: String,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

impl Failure {
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }

    pub(crate) fn invalid(text: String) -> Failure {
        Failure::new(INVALID, text)
    }

    pub(crate) fn from_error(error: impl std::fmt::Display) -> Failure {
        Failure::invalid(error.to_string())
    }

    pub(crate) fn unknown_handle() -> Failure {
        Failure::new(INVALID, "this handle is not one, is of another kind, or was freed")
    }

    pub(crate) fn closed() -> Failure {
        Failure::new(CLOSED, "the client is closed")
    }
}

impl From<fulmar_client::Error> for Failure {
    fn from(error: fulmar_client::Error) -> Failure {
        match error {
            fulmar_client::Error::Closed => Failure::closed(),
            error => Failure::from_error(error),
        }
    }
}

/// A value that a function returns to C.
pub(crate) trait Answer {
    /// The answer that stands for this failure.
    fn failed(self, code: c_int) -> Self;
}

impl Answer for c_int {
    fn failed(self, code: c_int) -> c_int {
        code
    }
}

/// Handles, of which 0 is none.
impl Answer for u64 {
    fn failed(self, _: c_int) -> u64 {
        0
    }
}

/// Runs a function's body. A failure's text is this thread's last one.
pub(crate) fn call<T: Answer>(failed: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    let result = catch_unwind(AssertUnwindSafe(body));
    let failure = match result {
        Ok(Ok(answer)) => return answer,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(INTERNAL, "a fault of libfulmar; please report it"),
    };
    let text = CString::new(failure.text.replace('\0', "\u{FFFD}")).unwrap_or_default();
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(text));
    failed.failed(failure.code)
}

/// The last failure's text, until the next failure of this thread; empty before the first.
pub(crate) fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
