//! A full or failing disk at any step.

use std::io;

use super::*;
use crate::ErrorKind;
use crate::write::disk::{Step, watch};

/// Lets step number `at` fail, a write after half of its bytes; `on` lets all later ones fail too.
fn failing(at: usize, on: bool) -> impl FnMut(Step<'_>) -> io::Result<()> {
    let mut count = 0;
    move |step| {
        if matches!(step, Step::Create(..)) {
            return Ok(()); // says what was done, does not do it
        }
        count += 1;
        if count - 1 < at || (count - 1 > at && !on) {
            return Ok(());
        }
        if let Step::Write(file, offset, bytes) = step {
            crate::platform::write_all_at(file, &bytes[..bytes.len() / 2], offset)?;
        }
        Err(io::Error::from(io::ErrorKind::StorageFull))
    }
}

fn fails_cleanly(edit: &Edit, on: bool) {
    let (before, after) = before_and_after(edit);
    let mut failures = 0;
    for at in 0.. {
        let folder = scratch();
        let path = folder.path().join("model.zt");
        (edit.prepare)(&path);
        let bytes = std::fs::read(&path).unwrap();
        let result = watch::during(failing(at, on), || (edit.run)(&path));
        let found = snapshot(&path).unwrap_or_else(|error| panic!("{} failing at {at}: {error}", edit.name));
        let Err(error) = result else {
            assert!(found == after);
            break;
        };
        failures += 1;
        assert_eq!(error.kind(), ErrorKind::Io, "{} failing at {at}: {error}", edit.name);
        assert_eq!(error.io_error().unwrap().kind(), io::ErrorKind::StorageFull);
        assert!(
            error.file().unwrap().contains("model.zt") || error.to_string().contains("sync the folder"),
            "{error}"
        );
        assert!(found == before || found == after, "{} failing at {at}: neither old nor new", edit.name);
        // Where cleaning up worked, nothing is left; where not, the next edit does it.
        if !on && found != after && !edit.name.contains("crash") && edit.name != "repair" {
            assert!(std::fs::read(&path).unwrap() == bytes, "{} failing at {at}: other bytes", edit.name);
            assert_eq!(listing(folder.path()), ["model.zt", "other.zt"], "{} failing at {at}", edit.name);
        }
        repair(&path).unwrap();
        assert!(snapshot(&path).unwrap() == found);
        assert!(!journal_of(&path).exists());
    }
    assert!(failures > 2, "{}: {failures} steps failed", edit.name);
}

#[test]
fn a_disk_that_is_full_for_a_moment_leaves_the_old_file() {
    EDITS.iter().for_each(|edit| fails_cleanly(edit, false));
}

#[test]
fn a_disk_that_stays_broken_leaves_the_old_file() {
    EDITS.iter().for_each(|edit| fails_cleanly(edit, true));
}

#[test]
fn a_writer_whose_write_failed_cannot_finish() {
    let folder = scratch();
    let path = folder.path().join("model.zt");
    plain(&path);
    let bytes = std::fs::read(&path).unwrap();
    let mut writer = Writer::append(&path).unwrap();
    let large = vec![1u8; 3 << 20];
    let failed = watch::during(failing(0, false), || writer.add("large", &[3 << 20], &large)).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Io);
    assert!(failed.to_string().contains("model.zt"), "{failed}");
    assert_eq!(writer.add("small", &[1], &[1u8]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(writer.finish().unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert!(std::fs::read(&path).unwrap() == bytes);
}
