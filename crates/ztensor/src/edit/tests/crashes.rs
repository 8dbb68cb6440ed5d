//! A power cut at any step: of the changes that were not synced, any may be missing.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::rc::Rc;

use super::*;
use crate::write::disk::{Step, watch};

/// A change of a file or a folder, as a disk sees it.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Create(String, u64),
    Write(u64, u64, Vec<u8>),
    SetLen(u64, u64),
    Sync(u64),
    Rename(String, String),
    Remove(String),
    SyncFolder,
}

impl Op {
    /// The file whose bytes it changes; `None` if it changes the folder.
    fn file(&self) -> Option<u64> {
        match self {
            Op::Write(file, ..) | Op::SetLen(file, _) | Op::Sync(file) => Some(*file),
            _ => None,
        }
    }

    fn is_sync(&self) -> bool {
        matches!(self, Op::Sync(_) | Op::SyncFolder)
    }
}

/// A folder as a disk has it: names that lead to files, and the files' bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk {
    pub(crate) names: BTreeMap<String, u64>,
    pub(crate) files: BTreeMap<u64, Vec<u8>>,
}

fn inode(file: &File) -> u64 {
    crate::platform::identity(file).unwrap().1
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

impl Disk {
    fn of(folder: &Path) -> Disk {
        let mut disk = Disk::default();
        disk.add(folder);
        disk
    }

    /// Adds the files of a folder; folders in it are left out.
    pub(crate) fn add(&mut self, folder: &Path) {
        for name in listing(folder) {
            let path = folder.join(&name);
            if path.is_file() {
                let inode = inode(&File::open(&path).unwrap());
                self.names.insert(name, inode);
                self.files.insert(inode, std::fs::read(&path).unwrap());
            }
        }
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match op {
            Op::Create(name, file) => drop(self.names.insert(name.clone(), *file)),
            Op::Write(file, offset, bytes) => {
                let content = self.files.entry(*file).or_default();
                let end = *offset as usize + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(bytes);
            }
            Op::SetLen(file, len) => self.files.entry(*file).or_default().resize(*len as usize, 0),
            Op::Rename(from, to) => {
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            Op::Remove(name) => drop(self.names.remove(name)),
            Op::Sync(_) | Op::SyncFolder => {}
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, file) in &self.names {
            (name, self.files.get(file)).hash(&mut hasher);
        }
        hasher.finish()
    }

    fn write_to(&self, folder: &Path) {
        for name in listing(folder) {
            std::fs::remove_file(folder.join(name)).unwrap();
        }
        for (name, file) in &self.names {
            std::fs::write(folder.join(name), self.files.get(file).map_or(&[][..], |bytes| bytes)).unwrap();
        }
    }
}

/// What `work` does to files and folders, which are told apart by their last names only.
pub(crate) fn noted(work: impl FnOnce()) -> Vec<Op> {
    let ops = Rc::new(RefCell::new(Vec::new()));
    let noted = ops.clone();
    let note = move |step: Step<'_>| {
        noted.borrow_mut().push(match step {
            Step::Create(path, file) => Op::Create(name_of(path), inode(file)),
            Step::Write(file, offset, bytes) => Op::Write(inode(file), offset, bytes.to_vec()),
            Step::SetLen(file, len) => Op::SetLen(inode(file), len),
            Step::Sync(file) => Op::Sync(inode(file)),
            Step::Rename(from, to) => Op::Rename(name_of(from), name_of(to)),
            Step::Remove(path) => Op::Remove(name_of(path)),
            Step::SyncFolder => Op::SyncFolder,
        });
        Ok(())
    };
    watch::during(note, work);
    ops.take()
}

/// Runs an edit and notes what it does to its folder.
fn record(edit: &Edit) -> (Disk, Vec<Op>) {
    let folder = scratch();
    let path = folder.path().join("model.zt");
    (edit.prepare)(&path);
    let start = Disk::of(folder.path());
    let ops = noted(|| (edit.run)(&path).unwrap());
    // What was noted is what was done.
    let mut replayed = start.clone();
    ops.iter().for_each(|op| replayed.apply(op));
    assert_eq!(replayed.digest(), Disk::of(folder.path()).digest(), "{}", edit.name);
    (start, ops)
}

/// Cuts writes where sectors end: a disk may have written any of them.
pub(crate) fn by_sector(ops: Vec<Op>) -> Vec<Op> {
    const SECTOR: usize = 512;
    let mut cut = Vec::new();
    for op in ops {
        let Op::Write(file, mut offset, bytes) = op else {
            cut.push(op);
            continue;
        };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(SECTOR - offset as usize % SECTOR));
            cut.push(Op::Write(file, offset, now.to_vec()));
            (rest, offset) = (later, offset + now.len() as u64);
        }
    }
    cut
}

/// Which of `count` changes reached the disk: all subsets of up to eight, else a sample.
fn subsets(count: usize, random: &mut u64) -> Vec<Vec<bool>> {
    if count <= 8 {
        return (0..1u32 << count).map(|bits| (0..count).map(|bit| bits >> bit & 1 == 1).collect()).collect();
    }
    let mut subsets = vec![vec![false; count], vec![true; count]];
    for only in 0..count {
        subsets.push((0..count).map(|bit| bit == only).collect());
        subsets.push((0..count).map(|bit| bit != only).collect());
        subsets.push((0..count).map(|bit| bit < only).collect());
    }
    for _ in 0..64 {
        let mut subset = Vec::with_capacity(count);
        for _ in 0..count {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            subset.push(*random >> 40 & 1 == 1);
        }
        subsets.push(subset);
    }
    subsets
}

/// Every state that a power cut can leave. `last` tells whether the edit had returned.
pub(crate) fn crash_states(start: &Disk, ops: &[Op], mut check: impl FnMut(&Disk, bool)) {
    let mut seen = HashSet::new();
    let mut random = 7;
    for cut in 0..=ops.len() {
        let done = &ops[..cut];
        let synced = |index: usize| {
            let op = &done[index];
            op.is_sync() || done[index + 1..].iter().any(|later| later.is_sync() && later.file() == op.file())
        };
        let pending: Vec<usize> = (0..cut).filter(|&index| !synced(index)).collect();
        for subset in subsets(pending.len(), &mut random) {
            let mut disk = start.clone();
            for (index, op) in done.iter().enumerate() {
                let missing = pending.binary_search(&index).is_ok_and(|at| !subset[at]);
                if !missing {
                    disk.apply(op);
                }
            }
            let last = cut == ops.len();
            if seen.insert((disk.digest(), last)) {
                check(&disk, last);
            }
        }
    }
}

fn survives(edit: &Edit, cut: fn(Vec<Op>) -> Vec<Op>) {
    let (before, after) = before_and_after(edit);
    let (start, ops) = record(edit);
    let ops = cut(ops);
    let folder = scratch();
    let path = folder.path().join("model.zt");
    let (mut states, mut olds, mut news) = (0, 0, 0);
    crash_states(&start, &ops, |disk, last| {
        disk.write_to(folder.path());
        let found = snapshot(&path).unwrap_or_else(|error| panic!("{}: {error}\n{ops:#?}", edit.name));
        assert!(found == after || (found == before && !last), "{}: neither old nor new", edit.name);
        states += 1;
        // A program that knows no journals finds a whole state too, or no file at all.
        if let Ok(reader) = Reader::from_bytes(std::fs::read(&path).unwrap()) {
            let found = snapshot_of(&reader).unwrap_or_else(|error| panic!("{}: {error}", edit.name));
            assert!(found == after || found == before, "{}: not even old or new", edit.name);
        }
        *if found == after { &mut news } else { &mut olds } += 1;
        // The next editor finds the same state, and leaves no trace of the crash.
        repair(&path).unwrap();
        assert!(snapshot(&path).unwrap() == found, "{}: repair changed the state", edit.name);
        assert!(!journal_of(&path).exists());
        append_more(&path);
        let mut grown = snapshot(&path).unwrap();
        assert!(grown.objects.remove("afterwards").is_some());
        assert!(grown.objects == found.objects, "{}: appending changed the rest", edit.name);
    });
    println!("{}: {} steps, {states} states, {olds} old, {news} new", edit.name, ops.len());
    assert!(news > 0 && (olds > 0 || before == after), "{}: the simulation saw one side only", edit.name);
}

fn append_more(path: &Path) {
    let mut writer = Writer::append(path).unwrap();
    writer.add("afterwards", &[2], &[1u8, 2]).unwrap();
    writer.finish().unwrap();
}

#[test]
fn every_edit_survives_a_power_cut_between_any_two_writes() {
    for edit in EDITS {
        survives(edit, |ops| ops);
    }
}

#[test]
fn every_edit_survives_a_power_cut_within_any_write() {
    for edit in EDITS {
        survives(edit, by_sector);
    }
}
