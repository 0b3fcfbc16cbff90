//! Floating-point numbers as Go reads them: decimal and hexadecimal, with `_` between digits, and never out of range.
//! Upstream counterpart: strconv.ParseFloat.

/// The number that a text means, if it means one that a double can come near to.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let (sign, plain) = match text.as_bytes().first()? {
        b'-' => (-1.0, &text[1..]),
        b'+' => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    if ["inf", "infinity"].iter().any(|name| plain.eq_ignore_ascii_case(name)) {
        return Some(sign * f64::INFINITY);
    }
    if text.eq_ignore_ascii_case("nan") {
        return Some(f64::NAN);
    }
    let number = match plain.strip_prefix("0x").or_else(|| plain.strip_prefix("0X")) {
        Some(digits) => hexadecimal(&without_marks(digits, '0', |c| c.is_ascii_hexdigit())?)?,
        None => decimal(&without_marks(plain, ' ', |c| c.is_ascii_digit())?)?,
    };
    number.is_finite().then_some(sign * number)
}

/// The text without `_`, each of which stands between two digits. `before` is the character in front of the text.
fn without_marks(text: &str, before: char, is_digit: impl Fn(char) -> bool) -> Option<String> {
    let mut last = before;
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if (c == '_' && !is_digit(last)) || (last == '_' && !is_digit(c)) {
            return None;
        }
        if c != '_' {
            plain.push(c);
        }
        last = c;
    }
    (last != '_').then_some(plain)
}

fn decimal(text: &str) -> Option<f64> {
    let allowed = |b: u8| b.is_ascii_digit() || matches!(b, b'.' | b'e' | b'E' | b'+' | b'-');
    let unsigned = text.starts_with(|c: char| c.is_ascii_digit() || c == '.');
    (unsigned && text.bytes().all(allowed)).then(|| text.parse().ok())?
}

/// Digits with a point among them, `p`, and a power of two.
fn hexadecimal(text: &str) -> Option<f64> {
    let (digits, power) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.len() + fraction.len() == 0 {
        return None;
    }
    let (mut mantissa, mut power) = (0u64, exponent(power)?);
    for (digit, behind_point) in whole.chars().map(|c| (c, false)).chain(fraction.chars().map(|c| (c, true))) {
        let digit = digit.to_digit(16)?;
        power -= if behind_point { 4 } else { 0 };
        if mantissa >> 59 == 0 {
            mantissa = mantissa << 4 | u64::from(digit);
        } else {
            // The digits that are cut off still decide which way is rounded.
            power += 4;
            mantissa |= u64::from(digit != 0);
        }
    }
    Some(scaled(mantissa, power))
}

/// Digits with a sign. A number far out of range is cut to another that is out of range too.
fn exponent(text: &str) -> Option<i64> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let size: i64 = digits.parse().unwrap_or(i64::MAX).min(1 << 40);
    Some(if text.starts_with('-') { -size } else { size })
}

/// `mantissa * 2^power`, rounded once and to even.
fn scaled(mantissa: u64, power: i64) -> f64 {
    if mantissa == 0 {
        return 0.0;
    }
    let top = power + 63 - i64::from(mantissa.leading_zeros());
    if top > 1023 {
        return f64::INFINITY;
    }
    // The power of the last bit that the result can have.
    let last = (top - 52).max(-1074);
    let surplus = last - power;
    if surplus <= 0 {
        return times_power(mantissa, power);
    }
    let Some(divisor) = u32::try_from(surplus).ok().filter(|s| *s < 127).map(|s| 1u128 << s) else { return 0.0 };
    let wide = u128::from(mantissa);
    let (kept, cut) = (wide / divisor, wide % divisor);
    let up = cut * 2 > divisor || (cut * 2 == divisor && kept % 2 == 1);
    times_power(u64::try_from(kept).unwrap_or(u64::MAX) + u64::from(up), last)
}

/// A product that a double holds exactly, or that is out of range.
fn times_power(mantissa: u64, power: i64) -> f64 {
    let small = u64::try_from((power + 1074).clamp(0, 51)).unwrap_or(0);
    let normal = u64::try_from((power + 1023).clamp(1, 2046)).unwrap_or(1);
    let scale = f64::from_bits(if power < -1022 { 1 << small } else { normal << 52 });
    #[expect(clippy::cast_precision_loss)]
    let mantissa = mantissa as f64;
    mantissa * scale
}
