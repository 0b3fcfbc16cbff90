//! Messages of D-Bus: their frames, their headers, and the few types of values that the kubelet reads. A body is read by whoever
//! knows what belongs in it. Pure.

/// The longest message that is read. All that logind and the bus say to the kubelet takes less than a hundredth of it.
pub const MOST: usize = 64 << 10;
/// The longest message that the specification allows.
const LARGEST: usize = 128 << 20;
/// The bytes of a header before its fields, the length of these among them.
const FIXED: usize = 16;

/// The fault of a message, for people.
pub type Wrong = &'static str;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    #[default]
    Call,
    Return,
    Error,
    Signal,
}

/// A message without what nobody here asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Message {
    pub sort: Sort,
    pub serial: u32,
    /// The serial of the call that it answers.
    pub answers: Option<u32>,
    pub path: String,
    pub interface: String,
    pub member: String,
    /// The name of an error.
    pub error: String,
    pub destination: String,
    /// The bus sets it: nobody speaks for another.
    pub sender: String,
    /// The types of the body's values.
    pub signature: String,
    /// How many descriptors come with it.
    pub descriptors: usize,
    pub body: Vec<u8>,
    /// The order of bytes, which is the sender's.
    pub is_big: bool,
}

/// Where the next message ends in what was read, once that is known.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    /// More has to be read first.
    Unknown,
    /// It is to be read as a whole.
    Whole(usize),
    /// It is too long for anything that is waited for: its bytes are passed over.
    Long(usize),
}

/// Finds the end of the message that begins here.
pub fn frame(bytes: &[u8]) -> Result<Frame, Wrong> {
    let Some(head) = bytes.get(..FIXED) else { return Ok(Frame::Unknown) };
    let is_big = is_big(head[0])?;
    if head[3] != 1 {
        return Err("a message of another version of the protocol");
    }
    let number = |at: usize| number(head, at, is_big) as usize;
    let fields = number(12).checked_next_multiple_of(8).ok_or("a header without an end")?;
    let whole = FIXED.saturating_add(fields).saturating_add(number(4));
    match () {
        () if whole <= MOST => Ok(Frame::Whole(whole)),
        () if whole <= LARGEST => Ok(Frame::Long(whole)),
        () => Err("a message longer than any may be"),
    }
}

fn is_big(mark: u8) -> Result<bool, Wrong> {
    match mark {
        b'l' => Ok(false),
        b'B' => Ok(true),
        _ => Err("no message"),
    }
}

fn number(bytes: &[u8], at: usize, is_big: bool) -> u32 {
    let four: [u8; 4] = bytes[at..at + 4].try_into().unwrap_or_default();
    if is_big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
}

/// Values that stand behind each other, each at a multiple of its own size.
pub struct Values<'a> {
    bytes: &'a [u8],
    at: usize,
    is_big: bool,
}

const SHORT: Wrong = "a value that ends too early";

impl<'a> Values<'a> {
    fn take(&mut self, length: usize, alignment: usize) -> Result<&'a [u8], Wrong> {
        let begin = self.at.checked_next_multiple_of(alignment).ok_or(SHORT)?;
        let end = begin.checked_add(length).ok_or(SHORT)?;
        let taken = self.bytes.get(begin..end).ok_or(SHORT)?;
        if self.bytes[self.at..begin].iter().any(|byte| *byte != 0) {
            return Err("something between two values");
        }
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Wrong> {
        self.take(1, 1).map(|byte| byte[0])
    }

    pub fn uint32(&mut self) -> Result<u32, Wrong> {
        self.take(4, 4).map(|four| number(four, 0, self.is_big))
    }

    pub fn uint64(&mut self) -> Result<u64, Wrong> {
        let eight: [u8; 8] = self.take(8, 8)?.try_into().map_err(|_| SHORT)?;
        Ok(if self.is_big { u64::from_be_bytes(eight) } else { u64::from_le_bytes(eight) })
    }

    pub fn boolean(&mut self) -> Result<bool, Wrong> {
        match self.uint32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a boolean that is neither"),
        }
    }

    pub fn text(&mut self) -> Result<&'a str, Wrong> {
        let length = self.uint32()? as usize;
        self.ended(length)
    }

    /// A list of types.
    pub fn signature(&mut self) -> Result<&'a str, Wrong> {
        let length = self.byte()?;
        self.ended(length.into())
    }

    fn ended(&mut self, length: usize) -> Result<&'a str, Wrong> {
        let text = self.take(length.checked_add(1).ok_or(SHORT)?, 1)?;
        let text = text.strip_suffix(&[0]).filter(|text| !text.contains(&0)).ok_or("a text without its end")?;
        std::str::from_utf8(text).map_err(|_| "a text that is none")
    }

    /// Enters a value that carries its own type, which has to be this one.
    pub fn variant(&mut self, of: &str) -> Result<(), Wrong> {
        if self.signature()? == of { Ok(()) } else { Err("a value of another type") }
    }

    /// Enters a value of several others.
    pub fn begins(&mut self) -> Result<(), Wrong> {
        self.take(0, 8).map(drop)
    }

    fn is_over(&self) -> bool {
        self.at == self.bytes.len()
    }
}

/// The fields of a header, by the numbers that they have there.
mod field {
    pub const PATH: u8 = 1;
    pub const INTERFACE: u8 = 2;
    pub const MEMBER: u8 = 3;
    pub const ERROR: u8 = 4;
    pub const ANSWERS: u8 = 5;
    pub const DESTINATION: u8 = 6;
    pub const SENDER: u8 = 7;
    pub const SIGNATURE: u8 = 8;
    pub const DESCRIPTORS: u8 = 9;
}

impl Message {
    /// Reads a whole message.
    pub fn read(bytes: &[u8]) -> Result<Message, Wrong> {
        if frame(bytes)? != Frame::Whole(bytes.len()) {
            return Err("a message that does not end where it should");
        }
        let is_big = is_big(bytes[0])?;
        let sort = match bytes[1] {
            1 => Sort::Call,
            2 => Sort::Return,
            3 => Sort::Error,
            4 => Sort::Signal,
            _ => return Err("a message of an unknown sort"),
        };
        let serial = number(bytes, 8, is_big);
        let mut message = Message { sort, serial, is_big, ..Message::default() };
        let length = number(bytes, 12, is_big) as usize;
        let mut fields = Values { bytes: &bytes[..FIXED + length], at: FIXED, is_big };
        while !fields.is_over() {
            message.read_field(&mut fields)?;
        }
        message.body = bytes[(FIXED + length).next_multiple_of(8)..].to_vec();
        Ok(message)
    }

    fn read_field(&mut self, fields: &mut Values<'_>) -> Result<(), Wrong> {
        fields.begins()?;
        let (name, of) = (fields.byte()?, fields.signature()?);
        let place = match (name, of) {
            (field::ANSWERS, "u") => {
                self.answers = Some(fields.uint32()?);
                return Ok(());
            }
            (field::DESCRIPTORS, "u") => {
                self.descriptors = fields.uint32()? as usize;
                return Ok(());
            }
            (field::SIGNATURE, "g") => {
                self.signature = fields.signature()?.to_owned();
                return Ok(());
            }
            (field::PATH, "o") => &mut self.path,
            (field::INTERFACE, "s") => &mut self.interface,
            (field::MEMBER, "s") => &mut self.member,
            (field::ERROR, "s") => &mut self.error,
            (field::DESTINATION, "s") => &mut self.destination,
            (field::SENDER, "s") => &mut self.sender,
            _ => return Err("a header that nobody knows"),
        };
        fields.text()?.clone_into(place);
        Ok(())
    }

    /// The text that an error tells people with, if it has one; there may be other values behind it.
    pub fn said(&self) -> &str {
        let said = self.values("s").and_then(|mut values| values.text());
        said.unwrap_or_default()
    }

    /// The body's values, if they are of these types.
    pub fn values(&self, signature: &str) -> Result<Values<'_>, Wrong> {
        if self.signature != signature {
            return Err("values of other types");
        }
        Ok(Values { bytes: &self.body, at: 0, is_big: self.is_big })
    }

    /// The message as it goes over the wire.
    pub fn write(&self) -> Vec<u8> {
        let mut fields = Body::default();
        let texts = [
            (field::PATH, "o", &self.path),
            (field::INTERFACE, "s", &self.interface),
            (field::MEMBER, "s", &self.member),
            (field::ERROR, "s", &self.error),
            (field::DESTINATION, "s", &self.destination),
            (field::SENDER, "s", &self.sender),
        ];
        for (name, of, text) in texts.into_iter().filter(|(.., text)| !text.is_empty()) {
            fields = fields.field(name, of).text(text);
        }
        let count = u32::try_from(self.descriptors).ok().filter(|count| *count > 0);
        for (name, number) in [(field::ANSWERS, self.answers), (field::DESCRIPTORS, count)] {
            if let Some(number) = number {
                fields = fields.field(name, "u").uint32(number);
            }
        }
        if !self.signature.is_empty() {
            fields = fields.field(field::SIGNATURE, "g").signature(&self.signature);
        }
        let sort = match self.sort {
            Sort::Call => 1,
            Sort::Return => 2,
            Sort::Error => 3,
            Sort::Signal => 4,
        };
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut all = Body(vec![b'l', sort, 0, 1]).uint32(length(&self.body)).uint32(self.serial);
        all = all.uint32(length(&fields.0));
        all.0.extend(fields.0);
        all.align(8);
        all.0.extend(&self.body);
        all.0
    }
}

/// Values behind each other, as they are written.
#[derive(Debug, Default)]
pub struct Body(pub Vec<u8>);

impl Body {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn field(mut self, name: u8, of: &str) -> Self {
        self.align(8);
        self.0.push(name);
        self.signature(of)
    }

    pub fn uint32(mut self, number: u32) -> Self {
        self.align(4);
        self.0.extend(number.to_le_bytes());
        self
    }

    pub fn uint64(mut self, number: u64) -> Self {
        self.align(8);
        self.0.extend(number.to_le_bytes());
        self
    }

    /// The place where a value of several others begins.
    pub fn begins(mut self) -> Self {
        self.align(8);
        self
    }

    /// A list of such values.
    pub fn list(self, values: Body) -> Self {
        let mut all = self.uint32(u32::try_from(values.0.len()).unwrap_or(u32::MAX)).begins();
        all.0.extend(values.0);
        all
    }

    pub fn text(self, text: &str) -> Self {
        let mut all = self.uint32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        all.0.extend(text.as_bytes());
        all.0.push(0);
        all
    }

    /// A list of types; the length of a longer one than there can be would not fit.
    pub fn signature(mut self, types: &str) -> Self {
        self.0.push(u8::try_from(types.len()).unwrap_or(u8::MAX));
        self.0.extend(types.as_bytes());
        self.0.push(0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signal() -> Message {
        Message {
            sort: Sort::Signal,
            serial: 7,
            path: "/org/freedesktop/login1".into(),
            interface: "org.freedesktop.login1.Manager".into(),
            member: "PrepareForShutdown".into(),
            sender: ":1.3".into(),
            signature: "b".into(),
            body: Body::default().uint32(1).0,
            ..Message::default()
        }
    }

    #[test]
    fn messages_are_read_as_they_are_written() {
        let answer = Message {
            sort: Sort::Return,
            serial: 9,
            answers: Some(3),
            destination: ":1.9".into(),
            signature: "h".into(),
            descriptors: 1,
            body: Body::default().uint32(0).0,
            ..Message::default()
        };
        for message in [signal(), answer, Message { serial: 1, ..Message::default() }] {
            let bytes = message.write();
            assert_eq!(frame(&bytes), Ok(Frame::Whole(bytes.len())));
            assert_eq!(frame(&[&bytes[..], b"more"].concat()), Ok(Frame::Whole(bytes.len())));
            assert_eq!(Message::read(&bytes), Ok(message));
        }
    }

    /// The bytes of `org.freedesktop.DBus.Hello`, counted by hand along the specification.
    #[test]
    fn the_wire_is_that_of_others() {
        let hello = Message {
            serial: 1,
            path: "/org/freedesktop/DBus".into(),
            interface: "org.freedesktop.DBus".into(),
            member: "Hello".into(),
            destination: "org.freedesktop.DBus".into(),
            ..Message::default()
        };
        let expected: &[u8] = b"l\x01\0\x01\0\0\0\0\x01\0\0\0\x6d\0\0\0\
            \x01\x01o\0\x15\0\0\0/org/freedesktop/DBus\0\0\0\
            \x02\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0\
            \x03\x01s\0\x05\0\0\0Hello\0\0\0\
            \x06\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0";
        assert_eq!(hello.write().escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn the_order_of_bytes_is_the_senders() {
        let big: &[u8] =
            b"B\x04\0\x01\0\0\0\x04\0\0\0\x02\0\0\0\x10\x08\x01g\0\x01b\0\0\x05\x01u\0\0\0\0\x07\0\0\0\x01";
        let message = Message::read(big).unwrap();
        assert_eq!((message.serial, message.answers), (2, Some(7)));
        assert_eq!(message.values("b").unwrap().boolean(), Ok(true));
    }

    #[test]
    fn values_are_of_the_types_that_are_waited_for_or_none() {
        let of = |signature: &str, body: &[u8]| Message {
            signature: signature.into(),
            body: body.to_vec(),
            ..Message::default()
        };
        assert_eq!(signal().values("b").unwrap().boolean(), Ok(true));
        assert!(signal().values("s").is_err());
        assert_eq!(of("b", &[2, 0, 0, 0]).values("b").unwrap().boolean(), Err("a boolean that is neither"));
        assert_eq!(of("b", &[1, 0]).values("b").unwrap().boolean(), Err(SHORT));
        let delay = of("v", b"\x01t\0\0\0\0\0\0\x40\x42\x0f\0\0\0\0\0");
        let mut values = delay.values("v").unwrap();
        assert_eq!((values.variant("t"), values.uint64()), (Ok(()), Ok(1_000_000)));
        assert!(delay.values("v").unwrap().variant("u").is_err());
        for body in [&b"\x03\0\0\0abc"[..], b"\x03\0\0\0a\0c\0", b"\x02\0\0\0\xff\xfe\0", b"\xff\xff\xff\xff\0"] {
            assert!(of("s", body).values("s").unwrap().text().is_err(), "{body:?}");
        }
    }

    #[test]
    fn long_messages_are_passed_over_and_broken_frames_told() {
        let head = |body: u32, fields: u32| {
            [b"l\x04\0\x01", &body.to_le_bytes()[..], &[1, 0, 0, 0], &fields.to_le_bytes()].concat()
        };
        assert_eq!(frame(&head(8, 3)), Ok(Frame::Whole(32)));
        assert_eq!(frame(&head(8, 3)[..15]), Ok(Frame::Unknown));
        assert_eq!(frame(&head(1 << 20, 0)), Ok(Frame::Long(16 + (1 << 20))));
        assert!(frame(&head(u32::MAX, u32::MAX)).is_err() && frame(&head(1 << 28, 0)).is_err());
        assert!(frame(b"x\x04\0\x01\0\0\0\0\x01\0\0\0\0\0\0\0").is_err());
        assert!(frame(b"l\x04\0\x02\0\0\0\0\x01\0\0\0\0\0\0\0").is_err());
    }

    /// Each byte of a message is changed in turn, and each of its beginnings is read: none of that does harm.
    #[test]
    fn broken_messages_are_errors() {
        let good = signal().write();
        for at in 0..good.len() {
            assert!(Message::read(&good[..at]).is_err(), "{at}");
            for wrong in [0, 1, 0x7f, 0xff, b'l', b'B', good[at].wrapping_add(8)] {
                let mut bytes = good.clone();
                bytes[at] = wrong;
                if let Ok(message) = Message::read(&bytes) {
                    assert_eq!(message.write().len(), good.len(), "{at} {wrong}");
                }
            }
        }
    }
}
