//! What the page's worker calls, and the one function that it provides. One file is open at a time;
//! results are JSON text in this module's memory until the next call.

use std::cell::RefCell;

use crate::{View, answer};

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    /// Copies `len` bytes of the file from `offset` on to `out`; 0 if it could.
    fn read(offset: u64, out: *mut u8, len: usize) -> i32;
}

fn host_read(offset: u64, out: &mut [u8]) -> bool {
    // SAFETY: the host writes `len` bytes at the address, which are all of `out`.
    unsafe { read(offset, out.as_mut_ptr(), out.len()) == 0 }
}

thread_local! {
    static NAME: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static VIEW: RefCell<Option<View>> = const { RefCell::new(None) };
    static RESULT: RefCell<String> = const { RefCell::new(String::new()) };
}

fn put(result: String) -> usize {
    RESULT.with_borrow_mut(|place| {
        *place = result;
        place.len()
    })
}

/// Where the result of the last call is; the call returned its length.
#[unsafe(no_mangle)]
pub extern "C" fn result() -> *const u8 {
    RESULT.with_borrow(|result| result.as_ptr())
}

/// Room for the name of a file that is about to be opened.
#[unsafe(no_mangle)]
pub extern "C" fn name(len: usize) -> *mut u8 {
    NAME.with_borrow_mut(|name| {
        name.clear();
        name.resize(len, 0);
        name.as_mut_ptr()
    })
}

/// Opens a file of `len` bytes by the name that was put in place; the result describes it.
#[unsafe(no_mangle)]
pub extern "C" fn open(len: u64) -> usize {
    let name = NAME.with_borrow(|name| String::from_utf8_lossy(name).into_owned());
    let opened = View::open(&name, len, host_read);
    let described = opened.and_then(|view| {
        let page = view.describe()?;
        VIEW.set(Some(view));
        Ok(page)
    });
    put(answer(described))
}

/// Reads one tensor; the result has its statistics and histogram.
#[unsafe(no_mangle)]
pub extern "C" fn tensor(index: usize) -> usize {
    VIEW.with_borrow(|view| match view {
        Some(view) => put(answer(view.tensor(index))),
        None => put(answer(Err(ztensor::Error::invalid("no file is open")))),
    })
}
