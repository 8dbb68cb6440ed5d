use super::*;
use crate::source::{MemorySource, Source};

fn load(bytes: &[u8]) -> Result<(Item, Arena)> {
    let source = MemorySource::new(bytes);
    let mut arena = Arena::new(source.len());
    let item = run(&mut Cursor::new(&source), &mut arena)?;
    Ok((item, arena))
}

fn rule(bytes: &[u8]) -> &'static str {
    load(bytes).unwrap_err().rule().unwrap_or("none")
}

#[test]
fn protocol_0_and_protocol_5_build_the_same_values() {
    // {'a': [1, 2.5, None, True], 'b': (-3,)}
    let text = b"(dp0\nVa\np1\n(lp2\nI1\naF2.5\naNaI01\nasVb\np3\n(I-3\ntp4\ns.";
    let binary = b"\x80\x05\x95%\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01G@\
        \x04\x00\x00\x00\x00\x00\x00N\x88e\x8c\x01b\x94J\xfd\xff\xff\xff\x85\x94u.";
    for pickle in [&text[..], &binary[..]] {
        let (item, arena) = load(pickle).unwrap();
        let Some(Node::Dict(dict)) = arena.node(item) else { panic!("{item:?}") };
        let [(a, list), (b, tuple)] = dict.entries[..] else { panic!("{dict:?}") };
        assert_eq!((arena.as_text(a), arena.as_text(b)), (Some("a"), Some("b")));
        assert_eq!(
            arena.sequence(list).unwrap(),
            [Item::Int(1), Item::Float(2.5), Item::None, Item::Bool(true)]
        );
        assert_eq!(arena.tuple(tuple).unwrap(), [Item::Int(-3)]);
    }
}

#[test]
fn calls_are_recorded_and_never_made() {
    let (item, arena) = load(b"cos\nsystem\n(Vtouch /tmp/owned\ntR.").unwrap();
    let object = arena.object(item).unwrap();
    assert_eq!(object.known, Known::Opaque);
    assert_eq!(arena.kind(item), "an object made by \"os.system\"");
    assert_eq!(arena.as_text(arena.tuple(object.args).unwrap()[0]), Some("touch /tmp/owned"));
}

#[test]
fn targets_are_checked() {
    for (bad, expected) in [
        (&b"(K\x01K\x02a."[..], "pickle.target"), // append to an int
        (b"(tK\x02a.", "pickle.target"),          // append to a tuple
        (b"}K\x02a.", "pickle.target"),           // append to a dict
        (b"]K\x01K\x02s.", "pickle.target"),      // item of a list
        (b"}]K\x02s.", "pickle.key"),             // a list as key
        (b"(]K\x02d.", "pickle.key"),
        (b"ccollections\nOrderedDict\n(((]K\x01lltR.", "pickle.key"),
        (b"}}b.", "pickle.target"),                // state of a dict
        (b"]}b.", "pickle.target"),                // state of a list
        (b"cos\nsystem\n}b.", "pickle.target"),    // state of a name
        (b"ca\nb\n)R}b}b.", "pickle.build-twice"), // state twice
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R}b.", "pickle.target"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)RK\x01K\x02s.", "pickle.target"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)RK\x01a.", "pickle.target"),
        (b"K\x01)R.", "pickle.target"),          // call of an int
        (b"ca\nb\nK\x01R.", "pickle.arguments"), // arguments that are no tuple
        (b"ca\nb\n]R.", "pickle.arguments"),
        (b"K\x01K\x02\x93.", "pickle.global"),
        (b"(K\x01d.", "pickle.pairs"),
        (b"ccollections\nOrderedDict\n(](K\x01eetR.", "pickle.target"),
    ] {
        assert_eq!(rule(bad), expected, "{:?}", String::from_utf8_lossy(bad));
    }
}

#[test]
fn stack_marks_and_memo_are_checked() {
    for (bad, expected) in [
        (&b"."[..], "pickle.stack"),
        (b"0.", "pickle.mark"),
        (b"t.", "pickle.mark"),
        (b"1.", "pickle.mark"),
        (b"N(.", "pickle.stack"),     // STOP below a mark
        (b"N(\x85.", "pickle.stack"), // a tuple across a mark
        (b"h\x00.", "pickle.memo"),
        (b"Nq\x05h\x06.", "pickle.memo"),
        (b"q\x00.", "pickle.stack"),
        (b"N", "pickle.short"),
        (b"X\xff\xff\xff\xffa.", "pickle.short"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff.", "pickle.short"),
        (b"T\xff\xff\xff\xff.", "pickle.length"),
        (b"\x95\xff\0\0\0\0\0\0\0N.", "pickle.frame"),
        (b"\xff.", "pickle.opcode"),
        (b"Ifoo\n.", "pickle.literal"),
    ] {
        assert_eq!(rule(bad), expected, "{:?}", String::from_utf8_lossy(bad));
    }
    assert_eq!(load(b"\x80\x06N.").unwrap_err().kind(), crate::ErrorKind::Unsupported);
    assert_eq!(load(b"\x97.").unwrap_err().kind(), crate::ErrorKind::Unsupported);
    // A memo entry far away is an entry, not four billion of them.
    assert_eq!(load(b"Nr\xff\xff\xff\xff0j\xff\xff\xff\xff.").unwrap().0, Item::None);
}

#[test]
fn copying_a_shared_list_is_paid_for() {
    // A list of 4,000 items, and 3,000 dictionaries made from it.
    let mut bomb = b"]q\x00(".to_vec();
    bomb.extend(b"N".repeat(4_000));
    bomb.extend(b"e0cbuiltins\nset\nq\x01".iter());
    bomb.extend(b"0(h\x01h\x00\x85R0".repeat(3_000));
    bomb.push(b'.');
    assert_eq!(rule(&bomb), "pickle.memory");
}

#[test]
fn long_bytes_stay_where_they_are() {
    let mut pickle = b"B\x00\x10\x00\x00".to_vec();
    pickle.extend([7; 4096]);
    pickle.push(b'.');
    let (item, arena) = load(&pickle).unwrap();
    assert!(matches!(arena.node(item), Some(Node::Blob { start: 5, len: 4096 })));
}
