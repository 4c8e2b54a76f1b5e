//! Behaviour that every engine must show. The including module defines the engines in
//! `every_engine`.

use super::every_engine;
use crate::support::{delete, guarded, put};
use kv::{Engine, Outcome};

pub fn value(engine: &dyn Engine, key: &str) -> Option<String> {
    engine.get(key.as_bytes()).unwrap().map(|value| String::from_utf8(value.to_vec()).unwrap())
}

#[test]
fn reads_what_was_applied() {
    every_engine(|engine| {
        assert_eq!(value(engine, "a"), None);
        engine.apply(&[put("a", "1")]).unwrap();
        assert_eq!(value(engine, "a").as_deref(), Some("1"));
        engine.apply(&[put("a", "2")]).unwrap();
        assert_eq!(value(engine, "a").as_deref(), Some("2"));
        engine.apply(&[delete("a"), delete("never there")]).unwrap();
        assert_eq!(value(engine, "a"), None);
    });
}

#[test]
fn later_batches_and_later_writes_win() {
    every_engine(|engine| {
        let mut twice = put("a", "1");
        twice.writes.push((b"a".to_vec(), Some("2".into())));
        engine.apply(&[twice]).unwrap();
        assert_eq!(value(engine, "a").as_deref(), Some("2"));
        engine.apply(&[put("b", "1"), delete("b"), put("a", "3"), put("c", "1"), delete("a")]).unwrap();
        assert_eq!(value(engine, "a"), None);
        assert_eq!(value(engine, "b"), None);
        assert_eq!(value(engine, "c").as_deref(), Some("1"));
    });
}

#[test]
fn scans_in_order_of_unsigned_bytes_and_keep_bounds_and_limit() {
    every_engine(|engine| {
        let keys: [&[u8]; 5] = [b"a", b"a\0", b"b", b"\x7f", b"\xff\x01"];
        for key in keys.iter().rev() {
            let writes = vec![(key.to_vec(), Some("v".into()))];
            engine.apply(&[kv::Batch { guards: vec![], writes }]).unwrap();
        }
        let scan = |from: &[u8], to: &[u8], limit| -> Vec<Vec<u8>> {
            engine.scan(from, to, limit).unwrap().into_iter().map(|(key, _)| key.to_vec()).collect()
        };
        assert_eq!(scan(b"", b"\xff\xff", 10), keys.map(<[u8]>::to_vec));
        assert_eq!(scan(b"a", b"b", 10), [b"a".to_vec(), b"a\0".to_vec()]);
        assert_eq!(scan(b"", b"\xff\xff", 2), [b"a".to_vec(), b"a\0".to_vec()]);
        assert_eq!(scan(b"b", b"a", 10), Vec::<Vec<u8>>::new());
        assert_eq!(scan(b"b", b"b", 10), Vec::<Vec<u8>>::new());
        engine.apply(&[delete("a\0")]).unwrap();
        assert_eq!(scan(b"a", b"b", 10), [b"a".to_vec()]);
    });
}

#[test]
fn a_guard_that_does_not_hold_stops_its_whole_batch_and_no_other() {
    every_engine(|engine| {
        engine.apply(&[put("owner", "me")]).unwrap();
        let mut two = guarded(put("a", "1"), "owner", Some("you"));
        two.writes.push((b"b".to_vec(), Some("1".into())));
        let outcomes = engine.apply(&[two, put("c", "1")]).unwrap();
        assert_eq!(outcomes, [Outcome::GuardFailed, Outcome::Applied]);
        assert_eq!((value(engine, "a"), value(engine, "b")), (None, None));
        assert_eq!(value(engine, "c").as_deref(), Some("1"));
    });
}

#[test]
fn guards_see_earlier_batches_of_the_same_commit_but_not_their_own() {
    every_engine(|engine| {
        let outcomes = engine
            .apply(&[
                guarded(put("owner", "me"), "owner", None),
                guarded(put("a", "1"), "owner", Some("me")),
                guarded(put("owner", "you"), "owner", Some("me")),
                guarded(put("a", "2"), "owner", Some("me")),
                guarded(delete("owner"), "owner", Some("you")),
                guarded(put("b", "1"), "owner", None),
            ])
            .unwrap();
        use Outcome::{Applied, GuardFailed};
        assert_eq!(outcomes, [Applied, Applied, Applied, GuardFailed, Applied, Applied]);
        assert_eq!(value(engine, "a").as_deref(), Some("1"));
    });
}

#[test]
fn guards_see_changes_since_their_last_check() {
    every_engine(|engine| {
        assert_eq!(engine.apply(&[guarded(put("a", "1"), "owner", None)]).unwrap(), [Outcome::Applied]);
        engine.apply(&[put("owner", "me")]).unwrap();
        assert_eq!(engine.apply(&[guarded(put("a", "2"), "owner", None)]).unwrap(), [Outcome::GuardFailed]);
        assert_eq!(engine.apply(&[guarded(put("a", "3"), "owner", Some("me"))]).unwrap(), [Outcome::Applied]);
        engine.apply(&[delete("owner")]).unwrap();
        assert_eq!(
            engine.apply(&[guarded(put("a", "4"), "owner", Some("me"))]).unwrap(),
            [Outcome::GuardFailed]
        );
        assert_eq!(value(engine, "a").as_deref(), Some("3"));
    });
}

#[test]
fn nothing_to_apply_is_no_error() {
    every_engine(|engine| {
        assert_eq!(engine.apply(&[]).unwrap(), []);
        assert_eq!(engine.apply(&[kv::Batch::default()]).unwrap(), [Outcome::Applied]);
        engine.persist().unwrap();
    });
}
