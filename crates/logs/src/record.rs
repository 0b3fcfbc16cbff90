//! An event, taken apart: its message, and its values with what they are.

use std::fmt::{Debug, Write};

use tracing::{
    Event, Level,
    field::{Field, Visit},
};

/// A value as it is written: numbers and booleans bare, everything else between quotes.
#[derive(Debug, PartialEq)]
pub enum Value {
    Bare(String),
    Text(String),
}

#[derive(Debug)]
pub struct Record<'a> {
    pub level: Level,
    pub file: Option<&'a str>,
    pub line: u32,
    pub message: String,
    /// The values and their names, but for the error.
    pub values: Vec<(&'static str, Value)>,
    pub error: Option<String>,
}

impl<'a> Record<'a> {
    pub fn of(event: &Event<'a>) -> Self {
        let metadata = event.metadata();
        let (file, line) = (metadata.file(), metadata.line().unwrap_or(1));
        let (message, values) = (String::new(), Vec::new());
        let mut record = Record { level: *metadata.level(), file, line, message, values, error: None };
        event.record(&mut record);
        record
    }

    pub fn of_library(record: &log::Record<'a>) -> Self {
        let (message, values) = (record.args().to_string(), Vec::new());
        let (file, line) = (record.file(), record.line().unwrap_or(1));
        Record { level: level(record.level()), file, line, message, values, error: None }
    }

    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Bare(text) | Value::Text(text)) => self.message = text,
            ("error", Value::Bare(text) | Value::Text(text)) => self.error = Some(text),
            (name, value) => self.values.push((name.trim_start_matches("r#"), value)),
        }
    }
}

pub fn level(level: log::Level) -> Level {
    match level {
        log::Level::Error => Level::ERROR,
        log::Level::Warn => Level::WARN,
        log::Level::Info => Level::INFO,
        log::Level::Debug => Level::DEBUG,
        log::Level::Trace => Level::TRACE,
    }
}

impl Visit for Record<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // A value whose own `Debug` fails is shown as far as it came.
        let _ = write!(text, "{value:?}");
        self.put(field, Value::Text(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::Text(value.to_owned()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::Bare(value.to_string()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::Bare(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::Bare(value.to_string()));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.put(field, Value::Bare(value.to_string()));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.put(field, Value::Bare(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let text = value.to_string();
        // JSON has no word for what is no number.
        self.put(field, if value.is_finite() { Value::Bare(text) } else { Value::Text(text) });
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.put(field, Value::Text(value.to_string()));
    }
}
