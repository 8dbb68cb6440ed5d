//! Decoding tensors before they are asked for.
//!
//! While a model is loaded, its consumer also builds modules and matches names. The threads of
//! [`DecodeAhead`] decode concurrently, in the order of the files, never more than
//! fits a budget of bytes that the consumer has not taken yet.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::catalog::Storage;
use crate::read::Reader;

/// Tensors that are decoded ahead of the consumer, into memory of type `M`.
///
/// Whole dense tensors are decoded, as by [`Reader::read_range_into`]. It is only a help: a tensor that it
/// has not begun with, or that it failed to decode, is the caller's to read, who then gets the error too.
/// Threads end with their work, with the first failure, and soon after the last handle is dropped.
pub struct DecodeAhead<M> {
    shared: Arc<Shared<M>>,
    /// Threads do not survive a fork, and a lock may have been held by one of them then.
    process: u32,
}

/// What is decoded ahead.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Limit on decoded bytes that are not taken yet, including those being decoded.
    pub budget: u64,
    /// Smaller tensors are decoded by the consumer on demand: that is as fast.
    pub smallest: u64,
    /// So are tensors of more, which all threads of a read can share.
    pub largest: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { budget: 128 << 20, smallest: 256 << 10, largest: 64 << 20 }
    }
}

struct Shared<M> {
    readers: Vec<Arc<Reader>>,
    limits: Limits,
    state: Mutex<State<M>>,
    changed: Condvar,
}

struct State<M> {
    tensors: Vec<Tensor<M>>,
    /// By the reader's number and their name.
    places: HashMap<(usize, String), usize>,
    /// Those before it are not waiting any more.
    next: usize,
    /// Bytes that are decoded or being decoded, and not taken.
    held: u64,
    /// The consumer needs no more of them.
    ended: bool,
}

struct Tensor<M> {
    reader: usize,
    name: String,
    len: u64,
    stage: Stage<M>,
}

enum Stage<M> {
    Waiting,
    Decoding,
    Ready(M),
    /// Taken, left to the caller, or failed.
    Gone,
}

impl<M: AsMut<[u8]> + Send + 'static> DecodeAhead<M> {
    /// Starts decoding on `threads` threads. `allocate` gives memory of a length; where it has none, no
    /// more is decoded.
    pub fn start(
        readers: Vec<Arc<Reader>>,
        threads: usize,
        limits: Limits,
        allocate: impl Fn(u64) -> Option<M> + Send + Sync + 'static,
    ) -> DecodeAhead<M> {
        let mut tensors = Vec::new();
        for (reader, file) in readers.iter().enumerate() {
            for (name, object) in file.objects() {
                let Some(data) = object.component("data") else { continue };
                let sized = (limits.smallest..=limits.largest.min(limits.budget)).contains(&data.len);
                if sized && matches!(data.storage, Storage::Encoded(_)) {
                    let (name, len) = (name.to_owned(), data.len);
                    tensors.push(Tensor { reader, name, len, stage: Stage::Waiting });
                }
            }
        }
        let places = tensors.iter().enumerate();
        let places = places.map(|(place, tensor)| ((tensor.reader, tensor.name.clone()), place)).collect();
        let state = State { tensors, places, next: 0, held: 0, ended: false };
        let shared = Shared { readers, limits, state: Mutex::new(state), changed: Condvar::new() };
        let (shared, allocate) = (Arc::new(shared), Arc::new(allocate));
        for _ in 0..threads {
            let (shared, allocate) = (Arc::clone(&shared), Arc::clone(&allocate));
            // One that cannot be started is done without.
            let _ = std::thread::Builder::new()
                .name("ztensor-ahead".to_owned())
                .spawn(move || shared.work(&*allocate));
        }
        DecodeAhead { shared, process: std::process::id() }
    }

    /// A tensor of reader number `reader`, if it is there already.
    pub fn take_ready(&self, reader: usize, name: &str) -> Option<M> {
        self.take_from(self.state()?, reader, name, false)
    }

    /// A tensor of reader number `reader`, waiting for it if it is just being decoded. `None` if it is
    /// the caller's to read: it will not be decoded here any more.
    pub fn take(&self, reader: usize, name: &str) -> Option<M> {
        self.take_from(self.state()?, reader, name, true)
    }

    fn take_from(
        &self,
        mut state: MutexGuard<'_, State<M>>,
        reader: usize,
        name: &str,
        wait: bool,
    ) -> Option<M> {
        let place = *state.places.get(&(reader, name.to_owned()))?;
        loop {
            match &mut state.tensors[place].stage {
                Stage::Ready(_) => break,
                Stage::Gone => return None,
                _ if !wait => return None,
                Stage::Decoding => {
                    state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                waiting => {
                    *waiting = Stage::Gone;
                    return None;
                }
            }
        }
        state.held -= state.tensors[place].len;
        let taken = std::mem::replace(&mut state.tensors[place].stage, Stage::Gone);
        drop(state);
        self.shared.changed.notify_all();
        match taken {
            Stage::Ready(memory) => Some(memory),
            _ => None,
        }
    }

    /// The state, unless this is a process that was forked off: the threads are not there.
    fn state(&self) -> Option<MutexGuard<'_, State<M>>> {
        (self.process == std::process::id()).then(|| self.shared.lock())
    }

    /// Whether threads may be at work, so that callers better use only their own.
    pub fn is_at_work(&self) -> bool {
        self.state().is_some_and(|state| !state.ended && state.next < state.tensors.len())
    }
}

impl<M: AsMut<[u8]>> Shared<M> {
    fn work(&self, allocate: &dyn Fn(u64) -> Option<M>) {
        while let Some(place) = self.claim() {
            // A panic must not leave anybody waiting.
            let guard = Failed { shared: self, place };
            let Some(memory) = self.decode(place, allocate) else { return };
            std::mem::forget(guard);
            self.lock().tensors[place].stage = Stage::Ready(memory);
            self.changed.notify_all();
        }
    }

    /// The next tensor that no thread has claimed, as soon as the budget has room for it.
    fn claim(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            let from = state.next;
            let waiting = |tensor: &Tensor<M>| matches!(tensor.stage, Stage::Waiting);
            let found = state.tensors[from..].iter().position(waiting).map(|offset| from + offset);
            state.next = found.unwrap_or(state.tensors.len());
            let place = found.filter(|_| !state.ended)?;
            let held = state.held + state.tensors[place].len;
            if held <= self.limits.budget {
                state.held = held;
                state.next = place + 1;
                state.tensors[place].stage = Stage::Decoding;
                return Some(place);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn decode(&self, place: usize, allocate: &dyn Fn(u64) -> Option<M>) -> Option<M> {
        let (reader, name, len) = {
            let state = self.lock();
            let tensor = &state.tensors[place];
            (&self.readers[tensor.reader], tensor.name.clone(), tensor.len)
        };
        let mut memory = allocate(len)?;
        reader.read_range_with(&name, 0..len, memory.as_mut(), 1).ok()?;
        Some(memory)
    }
}

impl<M> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tensor that is not decoded here after all, dropped when that is so.
struct Failed<'a, M> {
    shared: &'a Shared<M>,
    place: usize,
}

impl<M> Drop for Failed<'_, M> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.held -= state.tensors[self.place].len;
        state.tensors[self.place].stage = Stage::Gone;
        // Whatever is wrong, the caller meets it too, and says so.
        state.ended = true;
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl<M> Drop for DecodeAhead<M> {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.shared.lock().ended = true;
            self.shared.changed.notify_all();
        }
    }
}

impl<M> fmt::Debug for DecodeAhead<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodeAhead").field("process", &self.process).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::zstn::{self, PackOptions};

    const LEN: usize = 64 << 10;

    /// A packed file of tensors "0", "1"... of other values each, and those.
    fn packed(count: usize) -> (Vec<u8>, Vec<Vec<u8>>) {
        let tensors: Vec<Vec<u8>> =
            (0..count).map(|n| (0..LEN).map(|i| (i * (n + 3) / 7 % 251) as u8).collect()).collect();
        let mut entries = Vec::new();
        for n in 0..count {
            let (start, end) = (n * LEN, (n + 1) * LEN);
            entries.push(format!(r#""{n}":{{"dtype":"U8","shape":[{LEN}],"data_offsets":[{start},{end}]}}"#));
        }
        let header = format!("{{{}}}", entries.join(","));
        let mut plain = (header.len() as u64).to_le_bytes().to_vec();
        plain.extend(header.as_bytes());
        plain.extend(tensors.concat());
        let mut packed = Vec::new();
        let source = Arc::new(crate::source::MemorySource::new(plain));
        zstn::pack_source(source, &mut packed, &PackOptions::default()).unwrap();
        (packed, tensors)
    }

    fn start(reader: &Arc<Reader>, threads: usize, budget: u64) -> DecodeAhead<Vec<u8>> {
        let limits = Limits { budget, smallest: 1, largest: u64::MAX };
        DecodeAhead::start(vec![Arc::clone(reader)], threads, limits, |len| Some(vec![0; len as usize]))
    }

    fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
        for _ in 0..3000 {
            if done() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{what} did not come about");
    }

    #[test]
    fn every_tensor_is_the_right_one_and_comes_once() {
        let (file, tensors) = packed(12);
        let reader = Arc::new(Reader::from_bytes(file).unwrap());
        for (threads, budget) in [(1, u64::MAX), (3, 4 * LEN as u64), (2, LEN as u64)] {
            let ahead = start(&reader, threads, budget);
            for (n, tensor) in tensors.iter().enumerate().rev() {
                let name = n.to_string();
                let own = || reader.read(&name).unwrap();
                assert_eq!(&ahead.take(0, &name).unwrap_or_else(own), tensor, "{name}");
                assert!(ahead.take(0, &name).is_none(), "{name} is gone");
            }
            assert!(ahead.take(0, "nothing").is_none() && ahead.take(1, "0").is_none());
        }
    }

    #[test]
    fn no_more_is_held_than_the_budget_and_room_is_used_again() {
        let (file, tensors) = packed(10);
        let reader = Arc::new(Reader::from_bytes(file).unwrap());
        let ahead = start(&reader, 2, 3 * LEN as u64 + 5);
        let ready = |n: usize| matches!(ahead.shared.lock().tensors[n].stage, Stage::Ready(_));
        wait_until("three tensors", || (0..3).all(ready));
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(ahead.shared.lock().held, 3 * LEN as u64);
        assert!(!(3..10).any(ready), "there is no room for a fourth");
        assert!(ahead.take_ready(0, "7").is_none(), "asking for what is ready takes nothing");
        assert_eq!(ahead.take_ready(0, "1").as_ref(), Some(&tensors[1]));
        wait_until("a fourth", || ready(3));
        // What the caller reads itself is left out.
        assert!(ahead.take(0, "4").is_none());
        assert_eq!(ahead.take(0, "0").as_ref(), Some(&tensors[0]));
        wait_until("the one behind it", || ready(5));
        assert!(ahead.is_at_work());
    }

    #[test]
    fn threads_end_when_nobody_needs_them() {
        let (file, _) = packed(10);
        let reader = Arc::new(Reader::from_bytes(file).unwrap());
        // One that waits for room, and one that has nothing left to do.
        for budget in [2 * LEN as u64, u64::MAX] {
            let ahead = start(&reader, 2, budget);
            drop(ahead);
            wait_until("their end", || Arc::strong_count(&reader) == 1);
        }
        let ahead = start(&reader, 2, u64::MAX);
        wait_until("the end of the work", || !ahead.is_at_work());
    }

    #[test]
    fn a_damaged_tensor_is_left_to_the_caller_who_is_told() {
        let (mut file, tensors) = packed(3);
        let extent = |reader: &Reader, name| reader.get(name).unwrap().component("data").unwrap().extent();
        let middle = extent(&Reader::from_bytes(file.clone()).unwrap(), "1").unwrap();
        file[(middle.offset + middle.len / 2) as usize] ^= 1;
        let reader = Arc::new(Reader::from_bytes(file).unwrap());
        let ahead = start(&reader, 1, u64::MAX);
        assert!(ahead.take(0, "1").is_none());
        assert!(reader.read("1").unwrap_err().to_string().contains("checksum"));
        wait_until("the end of the work", || !ahead.is_at_work());
        assert_eq!(ahead.take(0, "0").unwrap_or_else(|| reader.read("0").unwrap()), tensors[0]);
        assert_eq!(ahead.take(0, "2").unwrap_or_else(|| reader.read("2").unwrap()), tensors[2]);
    }

    #[test]
    fn another_process_has_no_threads() {
        let (file, _) = packed(2);
        let reader = Arc::new(Reader::from_bytes(file).unwrap());
        let mut ahead = start(&reader, 1, u64::MAX);
        wait_until("the end of the work", || !ahead.is_at_work());
        ahead.process = ahead.process.wrapping_add(1);
        let _held = ahead.shared.lock();
        // None of this waits for the lock.
        assert!(ahead.take(0, "0").is_none() && ahead.take_ready(0, "1").is_none() && !ahead.is_at_work());
    }

    #[test]
    fn no_memory_is_no_failure() {
        let (file, _) = packed(2);
        let reader = Arc::new(Reader::from_bytes(file).unwrap());
        let limits = Limits { smallest: 1, ..Limits::default() };
        let ahead = DecodeAhead::<Vec<u8>>::start(vec![Arc::clone(&reader)], 1, limits, |_| None);
        wait_until("the end of the work", || !ahead.is_at_work());
        assert!(ahead.take(0, "0").is_none() && ahead.take(0, "1").is_none());
    }
}
