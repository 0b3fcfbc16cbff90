//! The protobuf wire format: tags, varints and length-delimited blocks.

use super::Malformed;

/// A message that is being written.
#[derive(Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push((value as u8) | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub fn varint(&mut self, field: u32, value: u64) {
        self.raw_varint(u64::from(field) << 3);
        self.raw_varint(value);
    }

    pub fn double(&mut self, field: u32, value: f64) {
        self.raw_varint(u64::from(field) << 3 | 1);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn block(&mut self, field: u32, bytes: &[u8]) {
        self.raw_varint(u64::from(field) << 3 | 2);
        self.raw_varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    /// A message inside this one. Its length is known when it is written, so it is moved up by the length's size then.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Writer)) {
        self.raw_varint(u64::from(field) << 3 | 2);
        let start = self.bytes.len();
        write(self);
        let length = self.bytes.len() - start;
        self.raw_varint(length as u64);
        let size = self.bytes.len() - start - length;
        self.bytes[start..].rotate_right(size);
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
