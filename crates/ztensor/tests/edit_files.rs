//! Edits against the real operating system: killed processes, full disks,
//! files and folders that may not be written, pages that others write to.
#![cfg_attr(not(unix), allow(dead_code, unused_imports))] // what only tests with links or signals use

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{ErrorKind, Write};
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt;
#[cfg(unix)]
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ztensor::edit::{Placement, replace_tensor_as};
use ztensor::{Checksum, Reader, Writer, compact, remove_tensors, repair, replace_tensor};

/// Numbers that tell by the first what all the others must be.
fn numbers(seed: u32) -> Vec<u32> {
    (0..2048).map(|n| seed.wrapping_add(n * 40_503)).collect()
}

fn add(writer: &mut Writer<'_>, name: &str, seed: u32) {
    writer.add_with(name, &[2048], &numbers(seed)).checksum(Checksum::Crc32c).write().unwrap();
}

fn make(path: &Path) {
    let mut writer = Writer::create(path).unwrap();
    add(&mut writer, "base", 0);
    add(&mut writer, "second", 1);
    writer.finish().unwrap();
}

/// The seeds of all tensors, each of which must be of one piece.
fn seeds(path: &Path) -> BTreeMap<String, u32> {
    let reader = Reader::open(path).unwrap();
    let seed = |name: &str| {
        let data = reader.read_as::<u32>(name).unwrap();
        assert!(data == numbers(data[0]), "{name} is a mixture");
        data[0]
    };
    reader.keys().map(|name| (name.to_owned(), seed(name))).collect()
}

/// The right to start processes, or to have a file to oneself.
///
/// From its fork until it runs its program, a child has copies of all descriptors,
/// and with them the locks of readers that are closed here meanwhile. So tests that
/// start processes and tests that look where new data was put take turns.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

// ---- killed processes ----------------------------------------------------

/// What edit number `k` does to the tensors.
fn model(seeds: &mut BTreeMap<String, u32>, k: u32) {
    match k % 7 {
        0 | 1 => drop(seeds.insert(format!("t{k}"), k)),
        2 | 4 => drop(seeds.insert("base".into(), k)),
        5 => {
            if let Some(name) = seeds.keys().find(|name| name.starts_with('t')).cloned() {
                seeds.remove(&name);
            }
        }
        _ => {}
    }
}

/// Makes edit number `k`.
fn edit(path: &Path, k: u32) {
    let append = || {
        let mut writer = Writer::append(path).unwrap();
        add(&mut writer, &format!("t{k}"), k);
        writer
    };
    match k % 7 {
        0 | 1 => assert!(append().finish().is_ok()),
        2 | 4 => assert!(replace_tensor_as(path, "base", &numbers(k)).is_ok()),
        3 => drop(append()),
        5 => {
            let names: Vec<String> =
                seeds(path).into_keys().filter(|name| name.starts_with('t')).take(1).collect();
            remove_tensors(path, path, &names).unwrap();
        }
        _ => assert!(compact(path).is_ok()),
    }
}

/// Runs this test program again, as the given test only, with a task.
fn child(test: &str, program: &Path, task: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", test, "--ignored", "--nocapture"]).env("EDIT_TASK", task);
    command.stdout(Stdio::null());
    command
}

#[test]
#[ignore = "the process that `killed_at_any_moment` kills"]
fn edits_until_killed() {
    let Ok(task) = std::env::var("EDIT_TASK") else { return };
    let (start, folder) = task.split_once(' ').unwrap();
    let (path, log) = (Path::new(folder).join("model.zt"), Path::new(folder).join("log"));
    let mut log = std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
    for k in start.parse().unwrap().. {
        log.write_all(format!("begin {k}\n").as_bytes()).unwrap();
        edit(&path, k);
        log.write_all(format!("done {k}\n").as_bytes()).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn killed_at_any_moment() {
    const KILLS: u64 = 300;
    // Where edits are faster or slower than the random delays, it takes more kills to hit one.
    const MOST_KILLS: u64 = 50 * KILLS;
    let _turn = turn();
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = folder.path().join("model.zt");
    let log = folder.path().join("log");
    make(&path);
    let program = std::env::current_exe().unwrap();
    let (mut next, mut random) = (0u32, 1u64);
    let (mut undone, mut done, mut torn) = (0, 0, 0);
    let mut kill = 0;
    while kill < KILLS || undone == 0 || torn == 0 {
        assert!(kill < MOST_KILLS, "no kill hit an edit");
        let mut state = seeds(&path);
        // Now and then a reader is there, so that data cannot go to its old place.
        let reader = (kill % 3 == 0).then(|| Reader::open_mmap(&path).unwrap());
        let _ = std::fs::remove_file(&log);
        let mut child = child("edits_until_killed", &program, &format!("{next} {}", folder.path().display()))
            .spawn()
            .unwrap();
        while !log.exists() {
            assert!(child.try_wait().unwrap().is_none(), "the child died by itself");
            std::thread::sleep(Duration::from_micros(100));
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(random >> 33 & 4095));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert!(status.code().is_none(), "the child failed by itself: {status}");

        let text = std::fs::read_to_string(&log).unwrap();
        let last = text.lines().rfind(|line| line.split(' ').count() == 2);
        let (word, k) = last.and_then(|line| line.split_once(' ')).unwrap_or(("done", ""));
        let k: u32 = k.parse().unwrap_or(next.wrapping_sub(1));
        let complete = if word == "done" { k.wrapping_add(1) } else { k };
        (next..complete).for_each(|k| model(&mut state, k));
        torn += u32::from(folder.path().join("model.zt.journal").exists());
        let found = seeds(&path);
        if word == "done" {
            assert_eq!(found, state, "after edit {k}");
        } else {
            let mut after = state.clone();
            model(&mut after, k);
            assert!(
                found == state || found == after,
                "edit {k}: {found:?} is neither {state:?} nor {after:?}"
            );
            *if found == after { &mut done } else { &mut undone } += 1;
        }
        next = k.wrapping_add(1);
        if kill % 2 == 0 {
            repair(&path).unwrap();
            assert_eq!(seeds(&path), found);
        }
        if let Some(reader) = reader {
            reader.verify_all(None).unwrap();
        }
        kill += 1;
    }
    println!("{kill} kills, {next} edits: {undone} undone, {done} done, {torn} journals left");
}

// ---- full disks ------------------------------------------------------------

/// A small file system of its own; `None` where that is not allowed.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(kib: u32) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={kib}k");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(SmallDisk(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    let _turn = turn();
    let Some(disk) = SmallDisk::mount(64) else {
        println!("skipped: a small tmpfs cannot be mounted here (faults are injected in the unit tests)");
        return;
    };
    let path = disk.0.path().join("model.zt");
    make(&path);
    let before = std::fs::read(&path).unwrap();
    let check = |error: ztensor::Error| {
        assert_eq!(error.io_error().unwrap().kind(), ErrorKind::StorageFull, "{error}");
        assert!(error.to_string().contains("model.zt"), "{error}");
        assert!(std::fs::read(&path).unwrap() == before, "{error}");
        assert_eq!(std::fs::read_dir(disk.0.path()).unwrap().count(), 1, "{error}");
    };
    let mut writer = Writer::append(&path).unwrap();
    let large = vec![1u8; 3 << 20];
    check_drop(writer.add("large", &[3 << 20], &large).map(|()| writer), check);
    // Room for the file and little more.
    std::fs::write(disk.0.path().join("filler"), vec![0; 36 << 10]).unwrap();
    let check = |error: ztensor::Error| {
        assert_eq!(error.io_error().unwrap().kind(), ErrorKind::StorageFull, "{error}");
        assert!(std::fs::read(&path).unwrap() == before, "{error}");
        assert_eq!(std::fs::read_dir(disk.0.path()).unwrap().count(), 2, "{error}");
    };
    let mut writer = Writer::append(&path).unwrap();
    add(&mut writer, "more", 5);
    check(writer.finish().unwrap_err());
    check(replace_tensor_as(&path, "base", &numbers(6)).unwrap_err());
    check(remove_tensors(&path, &path, &["second"]).unwrap_err());
    check(compact(&path).unwrap_err());
    std::fs::remove_file(disk.0.path().join("filler")).unwrap();
    assert_eq!(replace_tensor_as(&path, "base", &numbers(6)).unwrap(), Placement::InPlace);
    assert_eq!(seeds(&path)["base"], 6);
}

/// The writer must be gone before the file is looked at.
fn check_drop<T>(result: ztensor::Result<T>, check: impl FnOnce(ztensor::Error)) {
    match result {
        Ok(_) => panic!("there was room"),
        Err(error) => check(error),
    }
}

// ---- what may not be written -------------------------------------------------

#[test]
#[ignore = "the unprivileged process of `read_only_files_and_folders`"]
fn edits_without_permission() {
    let Ok(task) = std::env::var("EDIT_TASK") else { return };
    let folder = PathBuf::from(task);
    let check = |path: &Path, parts: &[&str]| {
        let before = std::fs::read(path).unwrap();
        let errors = [
            Writer::append(path).map(drop).unwrap_err(),
            replace_tensor(path, "base", &[0; 8192]).unwrap_err(),
            remove_tensors(path, path, &["base"]).unwrap_err(),
            compact(path).unwrap_err(),
            repair(path).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.io_error().unwrap().kind(), ErrorKind::PermissionDenied, "{error}");
            assert!(parts.iter().any(|part| error.to_string().contains(part)), "{error}");
        }
        assert!(std::fs::read(path).unwrap() == before);
        assert_eq!(seeds(path).len(), 2);
    };
    check(&folder.join("locked/model.zt"), &["journal"]);
    check(&folder.join("torn/model.zt"), &["journal", "editing"]);
    let read_only = folder.join("open/model.zt");
    let error = Writer::append(&read_only).map(drop).unwrap_err();
    assert_eq!(error.io_error().unwrap().kind(), ErrorKind::PermissionDenied, "{error}");
    assert!(error.to_string().contains("for editing") && error.to_string().contains("model.zt"), "{error}");
    assert_eq!(std::fs::read_dir(folder.join("open")).unwrap().count(), 1);
    assert_eq!(seeds(&read_only).len(), 2);
}

#[cfg(unix)]
#[test]
fn read_only_files_and_folders() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set(folder.path(), 0o755);
    for (name, folder_mode, file_mode) in
        [("locked", 0o555, 0o666), ("torn", 0o555, 0o666), ("open", 0o777, 0o444)]
    {
        let inner = folder.path().join(name);
        std::fs::create_dir(&inner).unwrap();
        let path = inner.join("model.zt");
        make(&path);
        if name == "torn" {
            // The journal of a killed editor, and what it had written.
            let mut writer = Writer::append(&path).unwrap();
            writer.add("lost", &[2 << 20], &vec![7u8; 2 << 20]).unwrap();
            let (journal, torn) = (inner.join("model.zt.journal"), std::fs::read(&path).unwrap());
            let content = std::fs::read(&journal).unwrap();
            drop(writer);
            std::fs::write(&path, torn).unwrap();
            std::fs::write(&journal, content).unwrap();
            set(&journal, 0o444);
        }
        set(&path, file_mode);
        set(&inner, folder_mode);
    }
    // The superuser may write anything, so another user must try. The program is
    // copied because it may lie where others cannot go.
    let program = folder.path().join("program");
    // Another process copies it: one that was written here is busy while a thread forks.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    set(&program, 0o755);
    let mut child = child("edits_without_permission", &program, folder.path().to_str().unwrap());
    if rustix::process::geteuid().is_root() {
        child.uid(65534).gid(65534);
    }
    assert!(child.status().unwrap().success());
    for name in ["locked", "torn", "open"] {
        set(&folder.path().join(name), 0o755);
    }
}

// ---- pages that others write to ----------------------------------------------

#[test]
fn writing_to_copy_on_write_pages_changes_no_file_and_no_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.zt");
    make(&path);
    let before = std::fs::read(&path).unwrap();
    let reader = Reader::open_mmap(&path).unwrap();
    let region = reader.catalog().sources.get(0).unwrap().copy_on_write().unwrap();
    let extent = reader.get("base").unwrap().require("data").unwrap().extent().unwrap();
    assert!(extent.offset + extent.len <= region.len as u64);
    let scribble = |byte| {
        // SAFETY: the range was checked to lie inside the region, which is writable,
        // lives as long as the reader, and is not read.
        unsafe { region.ptr.add(extent.offset as usize).write_bytes(byte, extent.len as usize) };
    };
    scribble(1);
    reader.verify_all(None).unwrap();
    assert_eq!(reader.view_as::<u32>("base").unwrap(), numbers(0));
    assert!(std::fs::read(&path).unwrap() == before);

    let mut writer = Writer::append(&path).unwrap();
    add(&mut writer, "more", 2);
    scribble(2);
    writer.finish().unwrap();
    assert_eq!(replace_tensor_as(&path, "base", &numbers(9)).unwrap(), Placement::Appended);
    scribble(3);
    assert_eq!(reader.read_as::<u32>("base").unwrap(), numbers(0));
    reader.verify_all(None).unwrap();
    // Windows replaces no file that is mapped.
    for step in [|_: &Path| {}, |path: &Path| assert_eq!(compact(path).is_ok(), cfg!(not(windows)))] {
        step(&path);
        assert_eq!(
            seeds(&path),
            [("base", 9), ("more", 2), ("second", 1)].map(|(n, s)| (n.to_owned(), s)).into()
        );
        Reader::open(&path).unwrap().verify_all(None).unwrap();
    }
    scribble(4);
    reader.verify_all(None).unwrap();
}
