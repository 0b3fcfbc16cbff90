//! The options of a request for a container's log, in the words of PodLogOptions: read and judged here for the API server and for the
//! kubelet.

use crate::{
    codec::decode,
    rules::url::{is_true, query_firsts},
    validation::field::{FieldError, Path},
};

const STREAMS: [&str; 3] = ["All", "Stderr", "Stdout"];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogOptions {
    pub container: String,
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    pub since_seconds: Option<i64>,
    pub tail_lines: Option<i64>,
    pub limit_bytes: Option<i64>,
    pub since_time: Option<String>,
    pub stream: Option<String>,
}

impl LogOptions {
    /// The error says why the query cannot be read.
    pub fn read(query: &str) -> Result<LogOptions, String> {
        let mut options = LogOptions::default();
        let number = |value: &str| {
            value.parse().map(Some).map_err(|_| format!("strconv.ParseInt: parsing {value:?}: invalid syntax"))
        };
        for (key, value) in query_firsts(query) {
            match key.as_str() {
                "container" => options.container = value,
                "follow" => options.follow = is_true(&value),
                "previous" => options.previous = is_true(&value),
                "timestamps" => options.timestamps = is_true(&value),
                "sinceSeconds" => options.since_seconds = number(&value)?,
                "tailLines" => options.tail_lines = number(&value)?,
                "limitBytes" => options.limit_bytes = number(&value)?,
                "sinceTime" if !value.is_empty() => {
                    decode::time(&value)?;
                    options.since_time = Some(value);
                }
                "stream" => options.stream = Some(value),
                _ => {}
            }
        }
        Ok(options)
    }

    /// The faults, in upstream's order.
    pub fn faults(&self, selects_streams: bool) -> Vec<FieldError> {
        let path = Path::new;
        // The path of the whole, as Go prints one without a name.
        let whole = || path("[]");
        let mut errors = Vec::new();
        let mut least = |name: &str, number: Option<i64>, least: i64, why: &str| {
            if let Some(number) = number.filter(|number| *number < least) {
                errors.push(FieldError::invalid(&path(name), number, why));
            }
        };
        least("tailLines", self.tail_lines, 0, "must be greater than or equal to 0");
        least("limitBytes", self.limit_bytes, 1, "must be greater than 0");
        if self.since_time.is_some() && self.since_seconds.is_some() {
            let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            errors.push(FieldError::forbidden(&whole(), why));
        } else {
            least("sinceSeconds", self.since_seconds, 1, "must be greater than 0");
        }
        match self.stream.as_deref() {
            Some(_) if !selects_streams => errors.push(FieldError::forbidden(&path("stream"), "may not be specified")),
            Some(stream) if !STREAMS.contains(&stream) => {
                errors.push(FieldError::not_supported(&path("stream"), stream, &STREAMS));
            }
            Some(stream) if stream != "All" && self.tail_lines.is_some() => {
                let why = "`tailLines` and specific `stream` are mutually exclusive for now";
                errors.push(FieldError::forbidden(&whole(), why));
            }
            _ => {}
        }
        errors
    }
}
