//! Timestamps, read as Go's time.Parse reads RFC 3339.

use super::check;

/// The text means this point in time, which is given in its canonical form.
fn means(text: &str, expected: &str) {
    check(&format!("string(timestamp(['{text}'][0]))"), &format!("\"{expected}\""));
}

fn fails(text: &str, why: &str) {
    check(&format!("timestamp(['{text}'][0])"), &format!("error: {why}"));
}

#[test]
fn loose_forms_are_taken() {
    means("2024-02-29T01:02:03Z", "2024-02-29T01:02:03Z");
    means("2024-02-29T01:02:03.1234567899Z", "2024-02-29T01:02:03.123456789Z");
    means("2024-02-29T01:02:03,5Z", "2024-02-29T01:02:03.5Z");
    means("2024-02-29T1:02:03Z", "2024-02-29T01:02:03Z");
    means("2024-02-29T01:02:03+01:30", "2024-02-29T01:02:03+01:30");
    means("2024-02-29T01:02:03-24:60", "2024-02-29T01:02:03-25:00");
    means("2024-02-29T01:02:03-00:00", "2024-02-29T01:02:03Z");
    means("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z");
}

#[test]
fn other_forms_are_refused() {
    let unreadable = "type conversion error from 'string' to 'google.protobuf.Timestamp'";
    for text in [
        "",
        "hello",
        "2024-02-29",
        "2023-02-29T00:00:00Z",
        "2024-02-29T23:59:60Z",
        "2024-02-29T24:00:00Z",
        "2024-02-29T01:60:00Z",
        "2024-02-29T01:02:03",
        "2024-02-29T01:02:03.Z",
        "2024-02-29t01:02:03Z",
        "2024-02-29T01:02:03z",
        "2024-02-29T01:02:03Z ",
        "2024-02-29T01:02:03+25:00",
        "2024-02-29T01:02:03+00:61",
        "2024-02-29T01:02:03+0100",
        "2024-02-29T01:02:03+01:00[UTC]",
        "24-02-29T01:02:03Z",
        "+2024-02-29T01:02:03Z",
        "2024-2-29T01:02:03Z",
        "2024-02-29T01:02:0éZ",
    ] {
        fails(text, unreadable);
    }
    fails("0000-12-31T23:59:59Z", "timestamp overflow");
    fails("0001-01-01T00:00:00+00:01", "timestamp overflow");
    check("timestamp('2024-02-29T23:59:60Z')", "refused: invalid timestamp argument");
}
