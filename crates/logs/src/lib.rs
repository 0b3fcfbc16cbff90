//! The log of a process: one line on standard error for each event, in the forms of upstream's components.
//!
//! `filter` says which events are written, `line` how, and `page` is `/debug/flags/v`, which changes the first while the process runs.
//! Upstream counterpart: k8s.io/klog, k8s.io/component-base/logs.

mod filter;
mod line;
pub mod page;
mod record;

use std::{
    io::Write,
    sync::atomic::{AtomicU32, Ordering},
};

use tracing::{
    Event, Metadata, Subscriber,
    level_filters::LevelFilter,
    span,
    subscriber::{Interest, set_global_default},
};

use filter::Filter;
pub use filter::{Module, NOTHING_MORE};
use line::Line;
use record::Record;

/// The form of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// klog's: `I1125 19:22:15.123456    4711 worker.rs:42] "Pod started" pod="default/web"`.
    #[default]
    Text,
    /// One object in each line, with the keys of component-base's JSON format.
    Json,
}

#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub format: Format,
    /// A level, or targets with levels such as `info,waypoint=debug`.
    pub filter: String,
    /// klog's `--v`.
    pub verbosity: u32,
    /// klog's `--vmodule`.
    pub modules: Vec<Module>,
}

/// The verbosity of the process, whose log is one.
static VERBOSITY: AtomicU32 = AtomicU32::new(0);

struct Logger {
    format: Format,
    filter: Filter,
    process: u32,
    zone: jiff::tz::TimeZone,
}

/// Makes this the log of the process, once. The error says what is wrong with the settings.
pub fn install(settings: Settings) -> Result<(), String> {
    if settings.format == Format::Json && !settings.modules.is_empty() {
        return Err("--vmodule works only with --logging-format=text".to_owned());
    }
    let filter = Filter::new(&settings.filter, settings.modules)?;
    let others = filter.most_of_libraries();
    let (process, zone) = (std::process::id(), jiff::tz::TimeZone::system());
    VERBOSITY.store(settings.verbosity, Ordering::Relaxed);
    let logger: &'static Logger = Box::leak(Box::new(Logger { format: settings.format, filter, process, zone }));
    set_global_default(logger).map_err(|error| format!("cannot install the logger: {error}"))?;
    // Libraries that know nothing of tracing.
    log::set_logger(logger).map_err(|error| format!("cannot install the logger: {error}"))?;
    log::set_max_level(others);
    Ok(())
}

/// Changes how much is logged, from now on.
pub fn set_verbosity(level: u32) {
    VERBOSITY.store(level, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

pub fn verbosity() -> u32 {
    VERBOSITY.load(Ordering::Relaxed)
}

impl Logger {
    fn write(&self, record: &Record<'_>) {
        let line = Line { now: clock::now().to_zoned(self.zone.clone()), process: self.process, record };
        let text = match self.format {
            Format::Text => line.text(),
            Format::Json => line.json(),
        };
        // Nobody can be told that nothing can be told.
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        self.filter.wants(metadata.target(), *metadata.level(), metadata.file(), verbosity())
    }
}

impl Subscriber for &'static Logger {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Whoever changes the verbosity has all callsites asked again.
        if metadata.is_event() && self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.filter.most(verbosity()))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        self.write(&Record::of(event));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.filter.wants(metadata.target(), record::level(metadata.level()), None, verbosity())
    }

    fn log(&self, record: &log::Record<'_>) {
        if log::Log::enabled(self, record.metadata()) {
            self.write(&Record::of_library(record));
        }
    }

    fn flush(&self) {}
}
