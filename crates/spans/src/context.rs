//! The place of a span in its trace, and the header `traceparent` by which it goes to other processes.
//! Source: W3C Trace Context.

/// A trace, a span in it, and whether it is sent to a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context {
    pub trace: u128,
    pub span: u64,
    pub sampled: bool,
}

fn random() -> u64 {
    loop {
        let mut bytes = [0; 8];
        clock::fill_random(&mut bytes);
        // Zero stands for no span.
        match u64::from_be_bytes(bytes) {
            0 => {}
            number => return number,
        }
    }
}

impl Context {
    /// The beginning of a trace. By its number everybody decides alike whether it is one of those that are sent.
    pub fn root(per_million: u32) -> Self {
        let (high, low) = (random(), random());
        let trace = u128::from(high) << 64 | u128::from(low);
        let bound = u128::from(per_million.min(1_000_000)) * (1 << 63) / 1_000_000;
        Context { trace, span: random(), sampled: u128::from(low >> 1) < bound }
    }

    /// A further span of the trace.
    pub fn child(&self) -> Self {
        Context { span: random(), ..*self }
    }

    /// Reads a header; `None` where it is no context, which is then as if it were not there.
    pub fn parse(header: &str) -> Option<Self> {
        let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        // Later versions may have more behind what is known.
        let longest = if header.starts_with("00") { 55 } else { 512 };
        if header.len() > longest || !header.is_ascii() {
            return None;
        }
        let mut parts = header.split('-');
        let mut part = |length: usize| parts.next().filter(|text| text.len() == length && is_hex(text));
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let trace = u128::from_str_radix(trace, 16).ok()?;
        let span = u64::from_str_radix(span, 16).ok()?;
        let flags = u8::from_str_radix(flags, 16).ok()?;
        (version != "ff" && trace != 0 && span != 0).then_some(Context { trace, span, sampled: flags & 1 == 1 })
    }

    /// The value of the header.
    pub fn header(&self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_strictly() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let read = Context::parse(good).unwrap();
        assert_eq!((read.span, read.sampled, read.header()), (0xb7ad6b7169203331, true, good.to_owned()));
        assert_eq!(Context::parse(&format!("{}fe", &good[..53])).map(|c| c.sampled), Some(false));
        assert!(Context::parse(&good.replacen("00", "cc", 1)).is_some(), "a later version");
        assert!(Context::parse(&format!("{}-more", good.replacen("00", "cc", 1))).is_some());
        for wrong in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-äf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(Context::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Context::parse(&format!("cc{}{}", &good[2..], "-x".repeat(1000))), None);
    }

    #[test]
    fn the_rate_says_how_many_traces_are_sent() {
        let sent = |rate: u32| (0..2000).filter(|_| Context::root(rate).sampled).count();
        assert_eq!((sent(0), sent(1_000_000)), (0, 2000));
        // Beyond this lie fifteen standard deviations.
        assert!((700..1300).contains(&sent(500_000)));
        let root = Context::root(0);
        assert_eq!((root.child().trace, root.child().span == root.span), (root.trace, false));
    }
}
