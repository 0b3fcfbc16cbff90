//! The protobuf wire format: tags, varints and length-delimited blocks.

use super::Malformed;

/// A number in as many bytes as it needs.
fn number(mut value: u64) -> ([u8; 10], usize) {
    let (mut bytes, mut length) = ([0; 10], 0);
    while value >= 0x80 {
        bytes[length] = (value as u8) | 0x80;
        value >>= 7;
        length += 1;
    }
    bytes[length] = value as u8;
    (bytes, length + 1)
}

/// A message that is written from its beginning.
#[derive(Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    fn number(&mut self, value: u64) {
        let (bytes, length) = number(value);
        self.bytes.extend_from_slice(&bytes[..length]);
    }

    pub fn varint(&mut self, field: u32, value: u64) {
        self.number(u64::from(field) << 3);
        self.number(value);
    }

    pub fn block(&mut self, field: u32, bytes: &[u8]) {
        self.number(u64::from(field) << 3 | 2);
        self.number(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    pub fn double(&mut self, field: u32, value: f64) {
        self.number(u64::from(field) << 3 | 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A message inside this one. Its length is known when it is written, so it is moved up by the length's size then.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Writer)) {
        self.number(u64::from(field) << 3 | 2);
        let start = self.bytes.len();
        write(self);
        let length = self.bytes.len() - start;
        self.number(length as u64);
        let size = self.bytes.len() - start - length;
        self.bytes[start..].rotate_right(size);
    }
}

/// Bytes that are written from the end to the beginning.
#[derive(Default)]
pub struct Backward {
    /// The bytes, of which the ones that are written stand at the end.
    bytes: Vec<u8>,
    start: usize,
}

impl Backward {
    pub fn written(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub fn clear(&mut self) {
        self.start = self.bytes.len();
    }

    /// Makes room for `more` bytes.
    pub fn reserve(&mut self, more: usize) {
        if self.start < more {
            let length = self.bytes.len() - self.start;
            let mut grown = vec![0; (length + more).max(self.bytes.len() * 2)];
            let start = grown.len() - length;
            grown[start..].copy_from_slice(self.written());
            (self.bytes, self.start) = (grown, start);
        }
    }

    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.start < bytes.len() {
            self.reserve(bytes.len());
        }
        let start = self.start - bytes.len();
        self.bytes[start..self.start].copy_from_slice(bytes);
        self.start = start;
    }

    /// Most numbers, tags and lengths have one byte.
    #[inline]
    fn number(&mut self, value: u64) {
        if value < 0x80 {
            return self.raw(&[value as u8]);
        }
        let (bytes, length) = number(value);
        self.raw(&bytes[..length]);
    }

    pub fn varint(&mut self, field: u32, value: u64) {
        self.number(value);
        self.number(u64::from(field) << 3);
    }

    pub fn double(&mut self, field: u32, value: f64) {
        self.raw(&value.to_le_bytes());
        self.number(u64::from(field) << 3 | 1);
    }

    pub fn block(&mut self, field: u32, bytes: &[u8]) {
        self.raw(bytes);
        self.open(field, bytes.len());
    }

    /// Makes what was written after there were `before` bytes a field.
    pub fn close(&mut self, field: u32, before: usize) {
        self.open(field, self.written().len() - before);
    }

    /// The tag of a field with this number of bytes.
    pub fn open(&mut self, field: u32, length: usize) {
        self.number(length as u64);
        self.number(u64::from(field) << 3 | 2);
    }
}

/// One field as it stands on the wire.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Item<'b> {
    Varint(u64),
    Fixed(u64),
    Block(&'b [u8]),
}

/// Reads the fields of a message one after another.
pub struct Reader<'b>(pub &'b [u8]);

impl<'b> Reader<'b> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn take(&mut self, length: usize) -> Result<&'b [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }

    /// The number and value of the next field; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u32, Item<'b>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = u32::try_from(tag >> 3).map_err(|_| Malformed)?;
        let item = match tag & 7 {
            0 => Item::Varint(self.varint()?),
            1 => Item::Fixed(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Malformed)?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Item::Block(self.take(length)?)
            }
            5 => Item::Fixed(u64::from(u32::from_le_bytes(self.take(4)?.try_into().map_err(|_| Malformed)?))),
            _ => return Err(Malformed),
        };
        Ok(Some((field, item)))
    }
}
