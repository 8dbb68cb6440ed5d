//! What every format's tests share: the conformance suite that each reader must
//! pass, and the comparison of sample files with what their makers say is in them.
#![allow(dead_code)] // each test program uses a part of it

pub mod allocations;
pub mod conformance;
pub mod fixtures;
pub mod sync;
pub mod zip;

/// Processor time of the calling thread. Bounds on it catch quadratic work and, unlike bounds on
/// wall-clock time, hold beside other busy processes.
#[cfg(unix)]
pub fn processor_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time of the calling thread.
#[cfg(windows)]
pub fn processor_time() -> std::time::Duration {
    use windows_sys::Win32::System::Threading::{GetCurrentThread, GetThreadTimes};
    let [mut created, mut ended, mut kernel, mut user] =
        [windows_sys::Win32::Foundation::FILETIME::default(); 4];
    // SAFETY: the handle is that of this thread, and each pointer is to a structure of its own.
    let done =
        unsafe { GetThreadTimes(GetCurrentThread(), &mut created, &mut ended, &mut kernel, &mut user) };
    assert_ne!(done, 0, "{}", std::io::Error::last_os_error());
    let [kernel, user] =
        [kernel, user].map(|time| u64::from(time.dwHighDateTime) << 32 | u64::from(time.dwLowDateTime));
    std::time::Duration::from_nanos(100 * (kernel + user))
}

/// The `file:` URL of an absolute path, on every system.
pub fn file_url(path: &std::path::Path) -> String {
    let path = path.display().to_string().replace('\\', "/");
    format!("file:///{}", path.trim_start_matches('/'))
}

/// Writes all bytes at an offset, on every system; moves the position of the file.
pub fn write_all_at(mut file: &std::fs::File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    use std::io::{Seek, Write};
    file.seek(std::io::SeekFrom::Start(offset))?;
    file.write_all(bytes)
}
