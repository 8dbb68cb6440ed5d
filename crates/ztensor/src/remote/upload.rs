//! A new object, uploaded in parts while it is written.
//!
//! Stores show an object only when all of it is there. A writer that is dropped
//! before [`finish`](Upload::finish), or whose parts fail, takes the upload back.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use object_store::path::Path as Key;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::task::JoinHandle;

use super::settings::Settings;
use super::{Location, Options, failure, pinned, runtime};
use crate::error::{Error, Result};

/// Parts of one size. Stores accept 10,000 parts, so the size doubles after these: more than
/// half a terabyte fits with the usual size. (structural)
const EQUAL_PARTS: u32 = 2000;
/// Bytes that are on their way at a time, or two parts. (limit)
const UNDER_WAY: u64 = 64 << 20;

/// An object that is being written.
pub(crate) struct Upload {
    url: String,
    key: Key,
    settings: Arc<Settings>,
    store: Arc<dyn ObjectStore>,
    /// What does not make a part yet.
    buffer: Vec<u8>,
    parts: u32,
    started: Option<Started>,
}

struct Started {
    upload: Box<dyn MultipartUpload>,
    under_way: VecDeque<JoinHandle<object_store::Result<()>>>,
    complete: bool,
}

impl Upload {
    /// Starts an object. Nothing is sent before there is a part to send.
    pub(crate) fn create(location: &Location, options: &Options) -> Result<Upload> {
        let url = location.url();
        if location.scheme().is_web() {
            let message = "a web server cannot be written to: use s3://, gs:// or az://, or write a file";
            return Err(Error::unsupported(message).in_file(url));
        }
        let key = pinned::key(location)?;
        if key.as_ref().is_empty() || location.key().ends_with('/') {
            return Err(Error::invalid("this URL names a folder; a file name is needed").in_file(url));
        }
        let settings = Settings::resolve(location, options)?;
        let store = runtime::client(&settings).map_err(|error| error.in_file(&url))?.store;
        Ok(Upload { url, key, settings, store, buffer: Vec::new(), parts: 0, started: None })
    }

    fn part_size(&self) -> u64 {
        self.settings.part_size << (self.parts / EQUAL_PARTS).min(10)
    }

    fn failed(&self, error: &object_store::Error) -> Error {
        failure::error(failure::UPLOADING, &self.url, error)
    }

    /// Sends what is in the buffer as a part, and waits if too many are on their way.
    fn send(&mut self) -> Result<()> {
        let most = (UNDER_WAY / self.part_size()).max(2) as usize;
        if self.started.is_none() {
            let upload = runtime::wait(self.store.put_multipart(&self.key))?;
            let upload = upload.map_err(|error| self.failed(&error))?;
            self.started = Some(Started { upload, under_way: VecDeque::new(), complete: false });
        }
        let part = PutPayload::from(std::mem::take(&mut self.buffer));
        self.parts += 1;
        if let Some(started) = &mut self.started {
            started.under_way.push_back(runtime::spawn(started.upload.put_part(part))?);
        }
        self.settle(most - 1)
    }

    /// Waits until at most `most` parts are on their way.
    fn settle(&mut self, most: usize) -> Result<()> {
        while let Some(started) = &mut self.started
            && started.under_way.len() > most
            && let Some(part) = started.under_way.pop_front()
        {
            match runtime::wait(part)? {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(self.failed(&error)),
                Err(error) => return Err(Error::io("cannot upload", error.into()).in_file(&self.url)),
            }
        }
        Ok(())
    }

    /// Sends the rest. The object appears when this returns.
    pub(crate) fn finish(mut self) -> Result<()> {
        if self.started.is_none() {
            let whole = PutPayload::from(std::mem::take(&mut self.buffer));
            let put = runtime::wait(self.store.put(&self.key, whole))?;
            return put.map(drop).map_err(|error| self.failed(&error));
        }
        if !self.buffer.is_empty() {
            self.send()?;
        }
        self.settle(0)?;
        if let Some(started) = &mut self.started {
            let completed = runtime::wait(started.upload.complete())?;
            started.complete = completed.is_ok();
            completed.map_err(|error| self.failed(&error))?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Upload({})", self.url)
    }
}

impl Write for Upload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = (self.part_size() as usize).saturating_sub(self.buffer.len());
        let taken = &bytes[..room.min(bytes.len())];
        if self.buffer.capacity() == 0 && taken.len() >= 64 << 10 {
            self.buffer.reserve_exact(self.part_size() as usize);
        }
        self.buffer.extend_from_slice(taken);
        if self.buffer.len() as u64 >= self.part_size() {
            self.send().map_err(into_io)?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(()) // a part is sent when it is full
    }
}

/// The same for those who can only take an error of the operating system.
fn into_io(error: Error) -> io::Error {
    let kind = error.io_error().map_or(io::ErrorKind::Other, io::Error::kind);
    io::Error::new(kind, error.to_string())
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(mut started) = self.started.take()
            && !started.complete
        {
            started.under_way.iter().for_each(JoinHandle::abort);
            // A store that cannot be reached drops the parts itself some day.
            let _ = runtime::wait(async {
                for part in started.under_way {
                    let _ = part.await;
                }
                started.upload.abort().await
            });
        }
    }
}
