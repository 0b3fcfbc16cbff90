//! The checker finds what is wrong with a history. Each case is a right one with one thing changed.

use std::time::Duration;

use crate::{
    checker::check,
    record::{Answer, Call, Fresh, History, Kind, Object, Operation, Revision, Seen},
};

fn object(revision: Revision, uid: &str, value: &str) -> Object {
    Object { name: "a".to_owned(), uid: uid.to_owned(), revision, value: value.to_owned() }
}

fn operation((began, ended): (u64, u64), call: Call, answer: Answer) -> Operation {
    Operation { began: Duration::from_millis(began), ended: Duration::from_millis(ended), call, answer }
}

fn name() -> String {
    "a".to_owned()
}

fn create(value: &str) -> Call {
    Call::Create { name: name(), value: value.to_owned() }
}

fn replace(value: &str, over: Option<Revision>) -> Call {
    Call::Replace { name: name(), value: value.to_owned(), over }
}

const GET: fn() -> Call = || Call::Get { name: name() };

fn delete(over: Option<Revision>) -> Call {
    Call::Delete { name: name(), over }
}

/// Made at 5, replaced at 7 and 8, deleted at 9, made again at 12; the replacement at 8 was cut off.
fn right() -> History {
    let operations = vec![
        operation((10, 20), create("1"), Answer::Written(object(5, "u", "1"))),
        operation((30, 40), replace("2", Some(5)), Answer::Written(object(7, "u", "2"))),
        operation((32, 38), replace("9", Some(4)), Answer::Changed),
        operation((35, 60), GET(), Answer::Found(object(5, "u", "1"))),
        operation((45, 50), replace("3", None), Answer::Unknown),
        operation((52, 55), Call::List(Fresh::Newest), Answer::Listed(8, vec![object(8, "u", "3")])),
        operation((56, 57), Call::List(Fresh::Any), Answer::Listed(6, vec![object(5, "u", "1")])),
        operation((70, 80), delete(None), Answer::Deleted { uid: "u".to_owned() }),
        operation((75, 85), create("8"), Answer::Exists),
        operation((86, 87), GET(), Answer::Absent),
        operation((90, 99), create("4"), Answer::Written(object(12, "v", "4"))),
        operation((100, 101), delete(Some(3)), Answer::Changed),
        operation((100, 102), Call::List(Fresh::Exactly(4)), Answer::Forgotten),
    ];
    let whole = vec![
        Seen::Listed(3, vec![]),
        Seen::Event(Kind::Added, object(5, "u", "1")),
        Seen::Bookmark(6),
        Seen::Event(Kind::Modified, object(7, "u", "2")),
        Seen::Event(Kind::Modified, object(8, "u", "3")),
        Seen::Event(Kind::Deleted, object(9, "u", "3")),
        Seen::Event(Kind::Added, object(12, "v", "4")),
        Seen::Bookmark(20),
    ];
    let late = vec![
        Seen::Listed(5, vec![object(5, "u", "1")]),
        Seen::Event(Kind::Modified, object(7, "u", "2")),
        Seen::Listed(8, vec![object(8, "u", "3")]),
        Seen::Event(Kind::Deleted, object(9, "u", "3")),
        Seen::Event(Kind::Added, object(12, "v", "4")),
    ];
    History { operations, watchers: vec![whole, late] }
}

#[test]
fn a_right_one_is_right() {
    let figures = check(&right()).unwrap_or_else(|complaints| panic!("{complaints:#?}"));
    assert_eq!((figures.changes, figures.acknowledged, figures.unknown), (5, 4, 1));
    assert_eq!((figures.reads, figures.events, figures.anew), (8, 8, 1));
}

/// The changed history has a complaint with these words.
#[track_caller]
fn wrong(words: &str, change: impl FnOnce(&mut History)) {
    let mut history = right();
    change(&mut history);
    let complaints = check(&history).expect_err(words);
    assert!(complaints.iter().any(|complaint| complaint.contains(words)), "{words:?} is not in {complaints:#?}");
}

#[test]
fn watchers_miss_nothing_and_see_nothing_twice() {
    wrong("watcher 0 sees revision 8 without 7", |h| drop(h.watchers[0].remove(3)));
    wrong("watcher 1 ends without revision 12", |h| drop(h.watchers[1].pop()));
    wrong("watcher 0 sees revision 7 behind 7", |h| {
        let again = h.watchers[0][3].clone();
        h.watchers[0].insert(4, again);
    });
    wrong("watcher 0 sees revision 7 behind 8", |h| h.watchers[0].swap(3, 4));
    wrong("watcher 0 has a bookmark at 7, and did not see 7", |h| h.watchers[0][2] = Seen::Bookmark(7));
    wrong("watcher 0 has a bookmark at 4 behind 5", |h| h.watchers[0][2] = Seen::Bookmark(4));
    wrong("watcher 1 begins anew at 6", |h| h.watchers[1][2] = Seen::Listed(6, vec![object(5, "u", "1")]));
    wrong("watcher 1 lists revision 8 as []", |h| h.watchers[1][2] = Seen::Listed(8, vec![]));
    wrong("watcher 0 does not begin with a list", |h| drop(h.watchers[0].remove(0)));
    wrong("sees revision 5 as Modified, and it is Added", |h| {
        h.watchers[0][1] = Seen::Event(Kind::Modified, object(5, "u", "1"));
    });
    wrong("another object deleted", |h| h.watchers[0][5] = Seen::Event(Kind::Deleted, object(9, "u", "2")));
    wrong("revision 8 is shown as", |h| h.watchers[0][4] = Seen::Event(Kind::Modified, object(8, "u", "x")));
    wrong("nobody watched", |h| h.watchers.clear());
    wrong("nobody watched the revisions from 5 to 8", |h| {
        h.watchers.remove(0);
        h.watchers[0].remove(1);
    });
    wrong("nobody watched before revision 5", |h| {
        h.watchers.remove(0);
        h.operations[0].answer = Answer::Written(object(4, "u", "0"));
    });
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_comes_from_nowhere() {
    // The write of revision 7 is in no watch: watchers that did not see it have missed it.
    wrong("watcher 1 sees revision 8 without 7", |h| {
        h.watchers[0].remove(3);
        h.watchers[1].remove(1);
        h.watchers[1][1] = Seen::Event(Kind::Modified, object(8, "u", "3"));
    });
    wrong("lost, though it was acknowledged", |h| h.operations[7].answer = Answer::Deleted { uid: "w".to_owned() });
    wrong("nobody deleted a at 9", |h| drop(h.operations.remove(7)));
    wrong("acknowledged twice", |h| {
        let again = h.operations[7].clone();
        h.operations.push(again);
    });
    wrong("nobody wrote what revision 7 shows", |h| h.operations[1].call = GET());
    wrong("which was answered Changed", |h| h.operations[4].answer = Answer::Changed);
    wrong("over Some(5)", |h| h.operations[1].call = replace("2", Some(4)));
    wrong("over Some(5)", |h| h.operations[1].call = create("2"));
    wrong("was done at 9 over Some(8)", |h| h.operations[7].call = delete(Some(7)));
    wrong("was done again at 8", |h| {
        h.watchers[0][4] = Seen::Event(Kind::Modified, object(8, "u", "2"));
        h.watchers[1][2] = Seen::Listed(8, vec![object(8, "u", "2")]);
        h.operations[5].answer = Answer::Listed(8, vec![object(8, "u", "2")]);
    });
    wrong("has another uid at revision 7", |h| {
        h.operations[1].answer = Answer::Written(object(7, "x", "2"));
        for watcher in [0, 1] {
            let at =
                h.watchers[watcher].iter().position(|s| matches!(s, Seen::Event(_, o) if o.revision == 7)).unwrap();
            h.watchers[watcher][at] = Seen::Event(Kind::Modified, object(7, "x", "2"));
        }
    });
    wrong("was deleted at revision 10, and was not there", |h| {
        h.watchers[0].insert(5, Seen::Event(Kind::Deleted, object(9, "u", "3")));
        h.watchers[0][6] = Seen::Event(Kind::Deleted, object(10, "u", "3"));
    });
}

#[test]
fn answers_are_true_when_they_are_given() {
    wrong("it is true no more", |h| h.operations[3].began = Duration::from_millis(41));
    wrong("it is true no more", |h| h.operations[9] = operation((95, 96), GET(), Answer::Found(object(8, "u", "3"))));
    // Made at 5 and there until 9: nobody can have found nothing in between.
    wrong("it was true at point", |h| h.operations.push(operation((41, 42), GET(), Answer::Absent)));
    wrong("it was true at point 23", |h| {
        let late = operation((88, 89), h.operations[8].call.clone(), Answer::Exists);
        h.operations.push(late);
    });
    wrong("it was true at point 16", |h| h.operations[5].began = Duration::from_millis(200));
    wrong("a client lists revision 8 as", |h| h.operations[5].answer = Answer::Listed(8, vec![object(7, "u", "2")]));
    wrong("a client lists revision 6 as []", |h| h.operations[6].answer = Answer::Listed(6, vec![]));
    // A write that was cut off may have been done, but not before it was asked for.
    wrong("it was true at point 15", |h| h.operations[4].began = Duration::from_millis(200));
    wrong("that is no answer", |h| h.operations[3].answer = Answer::Exists);
    wrong("that is no answer", |h| {
        let list = Call::List(Fresh::Exactly(7));
        h.operations.push(operation((100, 101), list, Answer::Listed(8, vec![object(8, "u", "3")])));
    });
}
