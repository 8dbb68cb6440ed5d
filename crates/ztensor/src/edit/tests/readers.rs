//! Readers that open a file, or look at one, at every step of an edit.

use std::cell::RefCell;
use std::fs::File;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::write::disk::watch;

/// Whether a reader would have to wait for an editor.
fn is_claimed(path: &Path) -> bool {
    !crate::platform::try_lock_shared(&File::open(path).unwrap()).unwrap()
}

#[test]
fn a_reader_that_opens_at_any_step_sees_the_old_file_or_the_new() {
    for edit in EDITS {
        let (before, after) = before_and_after(edit);
        let folder = scratch();
        let path = folder.path().join("model.zt");
        (edit.prepare)(&path);
        let (opened, waited) = (Rc::new(RefCell::new(0)), Rc::new(RefCell::new(0)));
        let (counts, watched, old, new) =
            ((opened.clone(), waited.clone()), path.clone(), before.clone(), after.clone());
        let look = move |_: crate::write::disk::Step<'_>| {
            if is_claimed(&watched) {
                *counts.1.borrow_mut() += 1;
                return Ok(());
            }
            let found = snapshot(&watched).unwrap();
            assert!(found == old || found == new);
            *counts.0.borrow_mut() += 1;
            Ok(())
        };
        watch::during(look, || (edit.run)(&path)).unwrap();
        assert!(*opened.borrow() > 2, "{}", edit.name);
        // Only data that moves to its old place keeps readers waiting.
        assert_eq!(
            *waited.borrow() > 0,
            matches!(edit.name, "replace" | "replace after a crash"),
            "{}",
            edit.name
        );
        assert!(snapshot(&path).unwrap() == after);
    }
}

/// Windows does not shorten a file that is mapped: edits wait for mapped readers to be closed, or fail.
#[cfg(not(windows))]
#[test]
fn views_that_are_open_never_change() {
    for edit in EDITS {
        let (before, after) = before_and_after(edit);
        let folder = scratch();
        let path = folder.path().join("model.zt");
        (edit.prepare)(&path);
        let held = Rc::new(RefCell::new(Vec::<(Reader, Vec<u8>)>::new()));
        let (holding, watched) = (held.clone(), path.clone());
        let look = move |_: crate::write::disk::Step<'_>| {
            if !is_claimed(&watched) {
                let reader = Reader::open_mmap(&watched).unwrap();
                let seen = reader.view("a").unwrap().to_vec();
                holding.borrow_mut().push((reader, seen));
            }
            Ok(())
        };
        watch::during(look, || (edit.run)(&path)).unwrap();
        for (reader, seen) in held.borrow().iter() {
            assert!(reader.view("a").unwrap() == seen, "{}", edit.name);
            assert!(reader.read("a").unwrap() == *seen, "{}", edit.name);
            let whole = &before.objects["a"].1[0];
            assert!(seen == whole || *seen == after.objects["a"].1[0]);
        }
        assert!(snapshot(&path).unwrap() == after);
    }
}

#[test]
fn readers_in_other_threads_always_find_a_whole_file() {
    let folder = scratch();
    let path = folder.path().join("model.zt");
    plain(&path);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Windows does not shorten a file that is mapped.
        let first = if cfg!(windows) { MapMode::Never } else { MapMode::Auto };
        for mode in [first, MapMode::Never] {
            let (path, stop) = (&path, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let reader = OpenOptions::default().map(mode).open(path).unwrap();
                    let a = reader.read_as::<f32>("a").unwrap();
                    let seed = a[0] as u32;
                    assert!(a == numbers(400, seed), "a tensor of two states");
                    reader.verify_all(None).unwrap();
                }
            });
        }
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _stop = Stop(&stop);
        for round in 0..60u32 {
            replace_tensor_as(&path, "a", &numbers(400, round)).unwrap();
            let mut writer = Writer::append(&path).unwrap();
            writer.add(&format!("new {round}"), &[1000], &numbers(1000, round)).unwrap();
            match round % 3 {
                0 => drop(writer.finish().unwrap()),
                _ => drop(writer),
            }
            // Windows does not replace a file that is open.
            if round % 10 == 9 && !cfg!(windows) {
                compact(&path).unwrap();
            }
        }
    });
    assert_eq!(Reader::open(&path).unwrap().len(), 8 + 20);
}
