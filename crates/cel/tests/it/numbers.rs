//! Conversions of texts, read as Go's strconv reads them.

use super::check;

fn means(text: &str, expected: &str) {
    check(&format!("double(['{text}'][0])"), expected);
}

#[test]
fn doubles() {
    means("1.5", "1.5");
    means("+.5e1", "5.0");
    means("-1.", "-1.0");
    means("1_000.5", "1000.5");
    means("Inf", "inf");
    means("-infinity", "-inf");
    means("nan", "NaN");
    means("0x1p-2", "0.25");
    means("-0X.8P1", "-1.0");
    means("0x_1_2.3_4_5p+1_2", "74565.0");
    means("0x0p99999999999999999999", "0.0");
    means("0x1p-1074", "5e-324");
    means("0x1p-1075", "0.0");
    means("0x1.8p-1075", "5e-324");
    means("0x1.fffffffffffffp1023", "1.7976931348623157e308");
    means("0x20000000000001p0", "9007199254740992.0");
    means("0x20000000000001.0000000000000001p0", "9007199254740994.0");
    means("0x1.00000000000018p0", "1.0000000000000004");
}

#[test]
fn texts_that_are_no_numbers() {
    let wrong = "error: type conversion error from 'string' to 'double'";
    for text in [
        "",
        ".",
        "e1",
        "1e",
        "1e400",
        "-1e400",
        "+nan",
        "infi",
        "0x1",
        "0xp1",
        "0x1p",
        "0x1p1024",
        "0x1.fffffffffffff8p1023",
        "0x1.1p1.",
        "_1",
        "1_",
        "1__0",
        "1_.5",
        "1e_5",
        "0x1p_2",
        "--1",
        "+-1",
        " 1",
        "1f",
    ] {
        means(text, wrong);
    }
    check("int(text)", "error: type conversion error from 'string' to 'int'");
    check("int(['9223372036854775808'][0])", "error: type conversion error from 'string' to 'int'");
    check("int(['1_0'][0])", "error: type conversion error from 'string' to 'int'");
    check("int(['+10'][0])", "10");
    check("uint(['-1'][0])", "error: type conversion error from 'string' to 'uint'");
    check("bool(text)", "error: type conversion error from 'string' to 'bool'");
    check("duration(text)", "error: type conversion error from 'string' to 'google.protobuf.Duration'");
    check("int('x')", "refused: type conversion error from 'string' to 'int'");
}
