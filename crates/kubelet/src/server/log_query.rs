//! The question behind `/logs/?query=…`: services of the machine whose words are wanted, or one file. Pure.
//! Upstream counterpart: pkg/kubelet/kubelet_server_journal.go.

use api::{
    rules::url::query_pairs,
    validation::field::{Errors, FieldError, Path},
};
use clock::Timestamp;

const SERVICES: usize = 4;
const NAME: usize = 256;
const LINES: i64 = 100_000;

#[derive(Debug, Default, PartialEq)]
pub struct Options {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    lines: Option<i64>,
    boot: Option<i64>,
    pattern: Option<String>,
}

#[derive(Debug, Default, PartialEq)]
pub struct Query {
    pub services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

/// Several errors, as upstream shows them together.
fn words(errors: &Errors) -> String {
    match errors.as_slice() {
        [one] => one.to_string(),
        all => format!("[{}]", all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

impl Query {
    /// The question of a URL's query; none if there is none in it. The error is for people.
    pub fn read(query: &str) -> Result<Option<Query>, String> {
        let pairs: Vec<(String, String)> = query_pairs(query).collect();
        let first = |name: &str| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let given = |name: &str| first(name).filter(|value| !value.is_empty());
        let (mut read, mut errors) = (Query::default(), Errors::new());
        let asked: Vec<&String> = pairs.iter().filter(|(key, _)| key == "query").map(|(_, value)| value).collect();
        for one in &asked {
            if one.contains(['/', '\\']) {
                read.files.push((*one).clone());
            } else if !one.trim().is_empty() {
                read.services.push((*one).clone());
            }
        }
        if !asked.is_empty() && read.files.is_empty() && read.services.is_empty() {
            errors.push(FieldError::invalid(&Path::new("query"), &asked, "query cannot be empty"));
        }
        let mut time = |name: &str| {
            let read = given(name)?.parse::<Timestamp>();
            let wrong = || FieldError::invalid(&Path::new(name), given(name), "invalid time format");
            read.map_err(|_| errors.push(wrong())).ok()
        };
        (read.options.since, read.options.until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name: &str| {
            let text = given(name)?;
            let why = format!("strconv.Atoi: parsing {text:?}: invalid syntax");
            text.parse::<i64>().map_err(|_| errors.push(FieldError::invalid(&Path::new(name), text, &why))).ok()
        };
        (read.options.boot, read.options.lines) = (number("boot"), number("tailLines"));
        read.options.pattern = given("pattern").map(str::to_owned);
        match errors.is_empty() {
            true => Ok(Some(read).filter(|read| *read != Query::default())),
            false => Err(words(&errors)),
        }
    }

    /// Whether it can be answered. `is_there` says whether there is a file of that name.
    pub fn check(&self, is_there: impl Fn(&str) -> bool) -> Result<(), String> {
        let (query, mut errors) = (Path::new("query"), Errors::new());
        for service in &self.services {
            let is_plain = service.chars().all(|c| c.is_ascii_alphanumeric() || "-_@".contains(c));
            let why = match is_plain {
                _ if service.len() > NAME => "length must be less than 100",
                false => "input contains unsupported characters",
                true => continue,
            };
            errors.push(FieldError::invalid(&query, service, why));
        }
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => errors.push(FieldError::required(&query, "cannot be empty with options")),
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                errors.push(FieldError::invalid(&query, both, "cannot specify a file and service"));
            }
            ([_, _, ..], _) => {
                errors.push(FieldError::invalid(&query, &self.files, "cannot specify more than one file"));
            }
            ([_], _) if self.options != Options::default() => {
                errors.push(FieldError::invalid(&query, &self.files, "cannot specify file with options"));
            }
            ([file], _) if !is_there(file) => {
                let why = format!("stat /var/log/{}: no such file or directory", file.trim_start_matches('/'));
                errors.push(FieldError::invalid(&query, &self.files, &why));
            }
            _ => {}
        }
        if self.services.len() > SERVICES {
            errors.push(FieldError::too_many(&query, self.services.len(), SERVICES));
        }
        errors.extend(self.options.check());
        if errors.is_empty() { Ok(()) } else { Err(words(&errors)) }
    }

    /// The file, where one is asked for.
    pub fn file(&self) -> Option<String> {
        self.files.first().map(|file| file.replace('\\', "/"))
    }

    pub fn has_options(&self) -> bool {
        self.options != Options::default()
    }

    /// The arguments of journalctl for these services.
    pub fn arguments(&self, services: &[&str]) -> Vec<String> {
        let options = &self.options;
        let time = |at: Timestamp| at.strftime("%Y-%-m-%-d %H:%M:%S").to_string();
        let mut arguments = vec!["--utc".to_owned(), "--no-pager".to_owned()];
        arguments.extend(options.since.map(|at| format!("--since={}", time(at))));
        arguments.extend(options.until.map(|at| format!("--until={}", time(at))));
        if let Some(lines) = options.lines {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        arguments.extend(services.iter().map(|service| format!("--unit={service}")));
        if let Some(pattern) = &options.pattern {
            arguments.extend([format!("--grep={pattern}"), "--case-sensitive=false".to_owned()]);
        }
        if let Some(boot) = options.boot {
            arguments.extend(["--boot".to_owned(), boot.to_string()]);
        }
        arguments.push("--output=short-precise".to_owned());
        arguments
    }
}

impl Options {
    fn check(&self) -> Errors {
        let mut errors = Errors::new();
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            let why = "must be after `sinceTime`";
            errors.push(FieldError::invalid(&Path::new("untilTime"), until.to_string(), why));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            errors.push(FieldError::invalid(&Path::new("boot"), boot, "must be less than 1"));
        }
        if let Some(lines) = self.lines.filter(|lines| !(0..=LINES).contains(lines)) {
            let why = format!("must be between 0 and {LINES}, inclusive");
            errors.push(FieldError::invalid(&Path::new("tailLines"), lines, &why));
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_or_one_file_can_be_asked_for() {
        let check = |query: &str, expected: Result<&str, &str>| {
            let read = Query::read(query).and_then(|read| {
                let read = read.expect("a question");
                read.check(|file| file == "/there.log")?;
                let services: Vec<&str> = read.services.iter().map(String::as_str).collect();
                Ok(read.file().unwrap_or_else(|| read.arguments(&services).join(" ")))
            });
            assert_eq!(read.as_deref().map_err(String::as_str), expected, "{query}");
        };
        const PLAIN: &str = "--utc --no-pager --unit=kubelet --output=short-precise";
        check("query=kubelet", Ok(PLAIN));
        check(
            "query=kubelet&query=containerd&tailLines=9&boot=-1",
            Ok(
                "--utc --no-pager --pager-end --lines=9 --unit=kubelet --unit=containerd --boot -1 --output=short-precise",
            ),
        );
        check(
            "query=kubelet&sinceTime=2026-01-02T03:04:05%2B01:00&untilTime=2026-01-02T04:04:05Z&pattern=a%20b",
            Ok("--utc --no-pager --since=2026-1-2 02:04:05 --until=2026-1-2 04:04:05 --unit=kubelet --grep=a b \
                --case-sensitive=false --output=short-precise"),
        );
        check("query=/there.log", Ok("/there.log"));
        check("query=%20", Err("query: Invalid value: [\" \"]: query cannot be empty"));
        check("query=a&sinceTime=now", Err("sinceTime: Invalid value: \"now\": invalid time format"));
        check("query=a&boot=x", Err("boot: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax"));
        check("boot=0", Err("query: Required value: cannot be empty with options"));
        check("query=a&boot=1", Err("boot: Invalid value: 1: must be less than 1"));
        check(
            "query=a&tailLines=100001",
            Err("tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive"),
        );
        check("query=a.service", Err("query: Invalid value: \"a.service\": input contains unsupported characters"));
        check("query=a%20--file", Err("query: Invalid value: \"a --file\": input contains unsupported characters"));
        check("query=a&query=b&query=c&query=d&query=e", Err("query: Too many: 5: must have at most 4 items"));
        check(
            "query=/there.log&query=a",
            Err("query: Invalid value: \"[/there.log], [a]\": cannot specify a file and service"),
        );
        check(
            "query=/there.log&boot=0",
            Err("query: Invalid value: [\"/there.log\"]: cannot specify file with options"),
        );
        check(
            "query=/none.log",
            Err("query: Invalid value: [\"/none.log\"]: stat /var/log/none.log: no such file or directory"),
        );
        check(
            "query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-01T03:04:05Z",
            Err("untilTime: Invalid value: \"2026-01-01T03:04:05Z\": must be after `sinceTime`"),
        );
    }

    #[test]
    fn a_url_without_a_question_asks_for_files() {
        assert_eq!(Query::read(""), Ok(None));
        assert_eq!(Query::read("other=1&boot="), Ok(None));
    }
}
