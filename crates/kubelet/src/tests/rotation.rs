//! Logs that are moved away while their containers write to them: an engine that opens them anew, does not, or says that it has
//! not, and a kubelet that is killed in between.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use clock::Instant;
use files::modes;
use futures::FutureExt;
use json::json;
use parking_lot::Mutex;
use runtime::fake::Moment;

use crate::tests::world::{World, until};

const REOPEN: &str = "reopen_log m";

/// How the engine takes the wish to open a log anew.
#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Willing,
    /// It does nothing.
    Refusing,
    /// It does it, and its answer gets lost.
    Unsure,
    /// It does nothing and never answers.
    Hanging,
}

/// The container `m` of the Pod `p`, as the engine keeps its log: it writes to the file that it has open, wherever that is.
struct Log {
    world: World,
    path: PathBuf,
    opened: Arc<Mutex<Option<File>>>,
    mood: Arc<Mutex<Mood>>,
}

fn lost() -> runtime::Error {
    runtime::Error::Unreachable { socket: "/run/engine.sock".to_owned(), message: "the connection broke".to_owned() }
}

impl Log {
    fn new() -> Log {
        let world = World::new();
        {
            let logs = &mut world.settings.lock().logs;
            (logs.max_bytes, logs.max_files) = (20, 3);
        }
        let path = world.path("logs/d_p_p-1/m/0.log");
        let (opened, mood) = (Arc::<Mutex<Option<File>>>::default(), Arc::new(Mutex::new(Mood::Willing)));
        let (file, told, at) = (opened.clone(), mood.clone(), path.clone());
        world.engine_does(move |call, moment| {
            let mood = if call == REOPEN { *told.lock() } else { Mood::Willing };
            let opens = match call {
                "start m" => moment == Moment::Before,
                REOPEN => moment == Moment::Before && [Mood::Willing, Mood::Unsure].contains(&mood),
                _ => false,
            };
            if opens {
                *file.lock() = Some(modes::append(&at, modes::LOG_FILE).unwrap());
            }
            async move {
                match (mood, moment) {
                    (Mood::Refusing, Moment::Before) | (Mood::Unsure, Moment::After) => Err(lost()),
                    (Mood::Hanging, Moment::Before) => std::future::pending().await,
                    _ => Ok(()),
                }
            }
            .boxed()
        });
        let container = json!({"name": "m", "image": "x:1"});
        world.make_pod("p", json!({"restartPolicy": "Always", "containers": [container]}));
        Log { world, path, opened, mood }
    }

    fn takes_it(&self, mood: Mood) {
        *self.mood.lock() = mood;
    }

    /// The container says something.
    fn write(&self, words: &str) {
        let line = format!("2026-01-02T03:04:05Z stdout F {words}\n");
        self.opened.lock().as_mut().expect("it has started").write_all(line.as_bytes()).unwrap();
    }

    /// The words in the log of that name, without the parts that were moved away; `None` where there is no log.
    fn words(&self) -> Option<String> {
        let text = fs::read_to_string(&self.path).ok()?;
        Some(text.lines().filter_map(|line| line.split(' ').nth(3)).collect::<Vec<_>>().join(" "))
    }

    /// The words of each part, the oldest first, and whether it is compressed.
    fn parts(&self) -> Vec<(String, bool)> {
        let mut names: Vec<_> =
            fs::read_dir(self.path.parent().unwrap()).unwrap().flatten().map(|e| e.path()).collect();
        names.retain(|path| *path != self.path);
        names.sort();
        let read = |path: &PathBuf| {
            let bytes = fs::read(path).unwrap();
            let is_compressed = path.extension().is_some_and(|end| end == "gz");
            let text = match is_compressed {
                true => std::io::read_to_string(flate2::read::GzDecoder::new(&*bytes)).unwrap(),
                false => String::from_utf8(bytes).unwrap(),
            };
            let words: Vec<&str> = text.lines().filter_map(|line| line.split(' ').nth(3)).collect();
            (words.join(" "), is_compressed)
        };
        names.iter().map(read).collect()
    }

    async fn begin(&self) {
        until("the Pod is ready", || self.world.is_ready("p")).await;
    }

    /// Waits for the next look at logs and for what comes of it.
    async fn look(&self) {
        let interval = self.world.settings.lock().logs.interval;
        clock::sleep(interval + Duration::from_secs(1)).await;
    }
}

fn plain(words: &str) -> (String, bool) {
    (words.to_owned(), false)
}

fn compressed(words: &str) -> (String, bool) {
    (words.to_owned(), true)
}

#[test]
fn a_log_that_is_too_large_is_moved_away_and_the_engine_goes_on_with_a_new_one() {
    let log = Log::new();
    log.world.life(None, async || {
        log.begin().await;
        for (word, parts) in [
            ("one", vec![plain("one")]),
            ("two", vec![compressed("one"), plain("two")]),
            ("three", vec![compressed("two"), plain("three")]),
        ] {
            log.write(word);
            assert_eq!(log.words().as_deref(), Some(word));
            log.look().await;
            assert_eq!((log.words().as_deref(), log.parts()), (Some(""), parts));
        }
        assert_eq!(log.world.asked(REOPEN), 3);
        log.look().await;
        assert_eq!(log.world.asked(REOPEN), 3, "an empty log stays as it is");
    });
}

#[test]
fn a_log_that_the_engine_does_not_open_anew_gets_its_name_back() {
    let log = Log::new();
    log.world.life(None, async || {
        log.begin().await;
        log.takes_it(Mood::Refusing);
        log.write("one");
        for word in ["two", "three"] {
            log.look().await;
            log.write(word);
        }
        assert_eq!((log.words().as_deref(), log.parts()), (Some("one two three"), Vec::new()));
        log.takes_it(Mood::Willing);
        log.look().await;
        log.write("four");
        assert_eq!((log.words().as_deref(), log.parts()), (Some("four"), vec![plain("one two three")]));
    });
}

#[test]
fn a_log_that_was_opened_anew_although_the_answer_got_lost_is_not_overwritten() {
    let log = Log::new();
    log.world.life(None, async || {
        log.begin().await;
        log.takes_it(Mood::Unsure);
        log.write("one");
        log.look().await;
        log.write("two");
        assert_eq!((log.words().as_deref(), log.parts()), (Some("two"), vec![plain("one")]));
    });
}

#[test]
fn a_kubelet_that_was_killed_after_it_moved_a_log_away_has_it_opened_anew_by_the_next_one() {
    let log = Log::new();
    log.world.life(None, async || {
        log.begin().await;
        log.takes_it(Mood::Hanging);
        log.write("one");
        until("the log is moved away", || log.words().is_none()).await;
    });
    log.write("two");
    assert_eq!(log.parts(), [plain("one two")], "the engine goes on with what it has open");
    log.world.life(None, async || {
        log.begin().await;
        log.takes_it(Mood::Refusing);
        log.look().await;
        assert_eq!(log.words(), None, "it is asked for again");
        log.takes_it(Mood::Willing);
        let begun = Instant::now();
        until("there is a log again", || log.words().is_some()).await;
        assert!(begun.elapsed() <= log.world.settings.lock().logs.interval + Duration::from_secs(1));
        log.write("three");
        assert_eq!((log.words().as_deref(), log.parts()), (Some("three"), vec![plain("one two")]));
        let asked = log.world.asked(REOPEN);
        log.look().await;
        log.look().await;
        assert_eq!((log.world.asked(REOPEN), log.parts()), (asked + 1, vec![compressed("one two"), plain("three")]));
    });
}
