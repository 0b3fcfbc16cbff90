//! The format on disk. A file is a header and a sequence of frames; a frame is what one write and one sync made
//! durable, under one checksum; a frame's payload is a sequence of records. All numbers are little-endian.
//!
//! A frame is only written after the one before it is durable. So a damaged frame can be the trace of an interrupted
//! write only where nothing follows it; anywhere else it is damage to acknowledged data ([`judge`]). Zeros up to the
//! end of the file are room that was not used yet.

use std::{
    io::{self, Read},
    sync::Arc,
};

use bytes::Bytes;

use super::edits;
use crate::{Entry, Revision};

/// The version that this code writes, and the newest that it reads. Version 1 had no name of the store in its files,
/// and only version 3 has [`Record::Change`].
pub const FORMAT: u32 = 3;

const MAGIC: &[u8; 8] = b"skiffsto";
const FIRST_FILE_HEADER: usize = 28;
pub(super) const FILE_HEADER: usize = 36;
const FRAME_MAGIC: u32 = 0x464b_5331;
pub(super) const FRAME_HEADER: usize = 28;
/// No frame is larger; a header that says so is damaged.
const MAX_PAYLOAD: usize = 256 << 20;
const RECORD_HEADER: usize = 33;
const SECTOR: u64 = 512;
/// Blocks are filled with this: anything but zeros, which are taken for what never reached the disk.
const FILLING: [u8; 4096] = [b' '; 4096];
/// One large value must not hold memory for good.
const EDITS_KEPT: usize = 64 << 10;

/// The role of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Log = 1,
    Snapshot = 2,
}

/// One thing that a frame says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Put {
        entry: Entry,
        expires_ms: u64,
    },
    /// A put, told by what is different from the key's state at the revision `base`.
    Change {
        key: Arc<str>,
        edits: Vec<u8>,
        base: Revision,
        revision: Revision,
        expires_ms: u64,
    },
    Delete {
        key: Arc<str>,
        revision: Revision,
    },
    Compact {
        revision: Revision,
    },
    /// The end of a snapshot, with the number of entries before it.
    End {
        entries: u64,
    },
}

/// A file's header as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub version: u32,
    pub base: Revision,
    /// The store that the file belongs to; files of version 1 do not say.
    pub store: Option<u64>,
    pub len: usize,
}

pub(super) fn file_header(role: Role, base: Revision, store: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(FILE_HEADER);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&(role as u32).to_le_bytes());
    out.extend_from_slice(&base.to_le_bytes());
    out.extend_from_slice(&store.to_le_bytes());
    let sum = crc32c::crc32c(&out);
    out.extend_from_slice(&sum.to_le_bytes());
    out
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    /// There are fewer bytes than a header has, or nothing but zeros.
    Short,
    Newer(u32),
    Damaged,
}

/// Reads a file's header from its first bytes (up to [`FILE_HEADER`] of them).
pub(super) fn parse_file_header(bytes: &[u8], role: Role) -> Result<FileHeader, HeaderFault> {
    if bytes.len() < FIRST_FILE_HEADER || is_zero(bytes) {
        return Err(HeaderFault::Short);
    }
    if &bytes[..8] != MAGIC {
        return Err(HeaderFault::Damaged);
    }
    // The version comes before the checksum: a newer format may have a longer header.
    let version = u32_at(bytes, 8);
    if version > FORMAT && version < 1 << 16 {
        return Err(HeaderFault::Newer(version));
    }
    let len = if version == 1 { FIRST_FILE_HEADER } else { FILE_HEADER };
    if bytes.len() < len {
        return Err(HeaderFault::Short);
    }
    if crc32c::crc32c(&bytes[..len - 4]) != u32_at(bytes, len - 4) || u32_at(bytes, 12) != role as u32 {
        return Err(HeaderFault::Damaged);
    }
    Ok(FileHeader { version, base: u64_at(bytes, 16), store: (version > 1).then(|| u64_at(bytes, 24)), len })
}

/// Builds one frame in a reused buffer.
#[derive(Default)]
pub(super) struct FrameBuilder {
    buffer: Vec<u8>,
    records: u32,
    edits: Vec<u8>,
    folded: u64,
}

impl FrameBuilder {
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.buffer.resize(FRAME_HEADER, 0);
        (self.records, self.folded) = (0, 0);
        // One huge batch must not hold its memory for good.
        self.buffer.shrink_to(1 << 20);
    }

    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub fn put(&mut self, entry: &Entry, expires_ms: u64) {
        self.record(1, &entry.key, &entry.value, [entry.created, entry.modified, expires_ms]);
    }

    /// A put over a state of the key that whoever reads the frame has read before it, in as few bytes as that allows.
    pub fn put_over(&mut self, before: &Entry, entry: &Entry, expires_ms: u64) {
        let mut edits = std::mem::take(&mut self.edits);
        edits.clear();
        if edits::between(&before.value, &entry.value, &mut edits) {
            self.record(5, &entry.key, &edits, [before.modified, entry.modified, expires_ms]);
            self.folded += (entry.value.len() - edits.len()) as u64;
        } else {
            self.put(entry, expires_ms);
        }
        edits.shrink_to(EDITS_KEPT);
        self.edits = edits;
    }

    /// By how many bytes the values are longer than what is told of them.
    pub fn folded(&self) -> u64 {
        self.folded
    }

    pub fn delete(&mut self, key: &str, revision: Revision) {
        self.record(2, key, &[], [0, revision, 0]);
    }

    pub fn compact(&mut self, revision: Revision) {
        self.record(3, "", &[], [0, revision, 0]);
    }

    /// Fills the block in which the frame ends when it is written at `at`, if another frame like it would reach into the
    /// next one: that one would cost two blocks, and costs one now. A reader of any version sees a compaction up to
    /// revision 0, which changes nothing. A block whose rest is shorter than a record cannot be filled, so this is done
    /// before the frame that would leave such a rest.
    pub fn fill(&mut self, at: u64, block: usize) {
        let length = self.buffer.len();
        let rest = block - ((at + length as u64) % block as u64) as usize;
        let is_short = length + RECORD_HEADER <= block.min(FILLING.len());
        if is_short && (RECORD_HEADER..length + RECORD_HEADER).contains(&rest) {
            self.record(3, "", &FILLING[..rest - RECORD_HEADER], [0; 3]);
        }
    }

    pub fn end(&mut self, entries: u64) {
        self.record(4, "", &[], [0, entries, 0]);
    }

    fn record(&mut self, tag: u8, key: &str, value: &[u8], numbers: [u64; 3]) {
        self.buffer.push(tag);
        self.buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
        for number in numbers {
            self.buffer.extend_from_slice(&number.to_le_bytes());
        }
        self.buffer.extend_from_slice(key.as_bytes());
        self.buffer.extend_from_slice(value);
        self.records += 1;
    }

    /// Completes the frame. `before` is the revision that the file has reached before it.
    pub fn finish(&mut self, before: Revision) -> &[u8] {
        let payload = &self.buffer[FRAME_HEADER..];
        let (length, sum) = (payload.len() as u32, crc32c::crc32c(payload));
        let header = &mut self.buffer[..FRAME_HEADER];
        header[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        header[4..8].copy_from_slice(&length.to_le_bytes());
        header[8..16].copy_from_slice(&before.to_le_bytes());
        header[16..20].copy_from_slice(&self.records.to_le_bytes());
        header[20..24].copy_from_slice(&sum.to_le_bytes());
        let header_sum = crc32c::crc32c(&header[..24]);
        header[24..28].copy_from_slice(&header_sum.to_le_bytes());
        &self.buffer
    }
}

/// A frame as it was read.
pub(super) struct Frame {
    pub before: Revision,
    pub records: Vec<Record>,
}

/// The content at a place in a file.
pub(super) enum Read1 {
    Frame(Frame),
    End,
    /// The write of the last frame was interrupted.
    Torn,
    Damaged,
}

/// Reads frames one after the other, with memory for one.
pub(super) struct FrameReader {
    source: Box<dyn Read + Send>,
    /// Where the next frame begins.
    pub offset: u64,
}

impl FrameReader {
    /// `source` stands behind the file's header, which has `offset` bytes.
    pub fn new(source: Box<dyn Read + Send>, offset: usize) -> Self {
        FrameReader { source, offset: offset as u64 }
    }

    pub fn next(&mut self) -> io::Result<Read1> {
        let mut bytes = Vec::new();
        read_up_to(&mut self.source, &mut bytes, FRAME_HEADER)?;
        if bytes.is_empty() {
            return Ok(Read1::End);
        }
        let Some(header) = parse_header(&bytes) else { return self.judge(bytes) };
        read_up_to(&mut self.source, &mut bytes, header.length)?;
        let payload = &bytes[FRAME_HEADER..];
        if payload.len() < header.length || crc32c::crc32c(payload) != header.sum {
            return self.judge(bytes);
        }
        match parse_records(payload, header.records) {
            Some(records) => {
                self.offset += bytes.len() as u64;
                Ok(Read1::Frame(Frame { before: header.before, records }))
            }
            None => Ok(Read1::Damaged),
        }
    }

    fn judge(&mut self, mut rest: Vec<u8>) -> io::Result<Read1> {
        self.source.read_to_end(&mut rest)?;
        Ok(match is_zero(&rest) {
            true => Read1::End,
            false if is_torn(&rest, self.offset) => Read1::Torn,
            false => Read1::Damaged,
        })
    }
}

pub(super) fn read_up_to(source: &mut (impl Read + ?Sized), out: &mut Vec<u8>, count: usize) -> io::Result<()> {
    source.take(count as u64).read_to_end(out).map(drop)
}

struct FrameHeader {
    length: usize,
    before: Revision,
    records: u32,
    sum: u32,
}

fn parse_header(bytes: &[u8]) -> Option<FrameHeader> {
    let good = bytes.len() >= FRAME_HEADER
        && u32_at(bytes, 0) == FRAME_MAGIC
        && crc32c::crc32c(&bytes[..24]) == u32_at(bytes, 24)
        && u32_at(bytes, 4) as usize <= MAX_PAYLOAD;
    good.then(|| FrameHeader {
        length: u32_at(bytes, 4) as usize,
        before: u64_at(bytes, 8),
        records: u32_at(bytes, 16),
        sum: u32_at(bytes, 20),
    })
}

fn parse_records(mut payload: &[u8], count: u32) -> Option<Vec<Record>> {
    let mut records = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let header = payload.get(..RECORD_HEADER)?;
        let (key_len, value_len) = (u32_at(header, 1) as usize, u32_at(header, 5) as usize);
        let (created, modified, expires_ms) = (u64_at(header, 9), u64_at(header, 17), u64_at(header, 25));
        let body = payload.get(RECORD_HEADER..RECORD_HEADER.checked_add(key_len)?.checked_add(value_len)?)?;
        let key: Arc<str> = std::str::from_utf8(&body[..key_len]).ok()?.into();
        records.push(match header[0] {
            1 => {
                let value = Bytes::copy_from_slice(&body[key_len..]);
                Record::Put { entry: Entry { key, value, created, modified }, expires_ms }
            }
            2 => Record::Delete { key, revision: modified },
            3 => Record::Compact { revision: modified },
            4 => Record::End { entries: modified },
            5 => Record::Change { key, edits: body[key_len..].to_vec(), base: created, revision: modified, expires_ms },
            _ => return None,
        });
        payload = &payload[RECORD_HEADER + key_len + value_len..];
    }
    payload.is_empty().then_some(records)
}

/// Whether the damaged `rest` of a file, which begins at `offset`, is what an interrupted write leaves: less than a
/// frame, or a last frame with sectors that never reached the disk and read as zeros. Everything else was once whole.
fn is_torn(rest: &[u8], offset: u64) -> bool {
    let used = rest.len() - rest.iter().rev().take_while(|b| **b == 0).count();
    if used < FRAME_HEADER {
        return true;
    }
    match parse_header(rest) {
        Some(header) => {
            let end = FRAME_HEADER + header.length;
            rest.len() < end || (used <= end && has_zero_sector(&rest[..end], offset))
        }
        None => {
            let follows = (1..used.saturating_sub(FRAME_HEADER)).any(|at| parse_header(&rest[at..]).is_some());
            !follows && has_zero_sector(&rest[..used], offset)
        }
    }
}

/// Whether a sector's share of these bytes is all zeros. Values are text and numbers are short, so the store hardly
/// ever writes such a share.
fn has_zero_sector(bytes: &[u8], offset: u64) -> bool {
    let first = ((SECTOR - offset % SECTOR) % SECTOR) as usize;
    let (head, tail) = bytes.split_at(first.min(bytes.len()));
    (!head.is_empty() && is_zero(head)) || tail.chunks(SECTOR as usize).any(is_zero)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(before: Revision, value: &str) -> Vec<u8> {
        let mut builder = FrameBuilder::default();
        builder.clear();
        let value = Bytes::copy_from_slice(value.as_bytes());
        builder.put(&Entry { key: "/k".into(), value, created: before + 1, modified: before + 1 }, 0);
        builder.finish(before).to_vec()
    }

    fn read_all(bytes: Vec<u8>) -> (usize, &'static str) {
        let mut reader = FrameReader::new(Box::new(io::Cursor::new(bytes)), FILE_HEADER);
        let mut frames = 0;
        loop {
            match reader.next().unwrap() {
                Read1::Frame(_) => frames += 1,
                Read1::End => return (frames, "end"),
                Read1::Torn => return (frames, "torn"),
                Read1::Damaged => return (frames, "damaged"),
            }
        }
    }

    /// Every cut of the file inside its last frame is a torn tail, every flipped bit anywhere is damage.
    #[test]
    fn a_cut_is_torn_and_a_flipped_bit_is_damage() {
        let (one, two) = (frame(1, &"a".repeat(700)), frame(2, "b"));
        let whole = [one.clone(), two].concat();
        assert_eq!(read_all(whole.clone()), (2, "end"));
        for cut in one.len() + 1..whole.len() {
            assert_eq!(read_all(whole[..cut].to_vec()), (1, "torn"), "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (frames, end) = read_all(flipped);
            // A length that grew looks like a frame that is not all there; its header's checksum says otherwise.
            assert_eq!((frames, end), (usize::from(bit / 8 >= one.len()), "damaged"), "bit {bit}");
        }
    }

    #[test]
    fn sectors_that_never_reached_the_disk_are_torn_only_at_the_end() {
        let mut last = frame(1, &"a".repeat(2000));
        last[600..1700].fill(0);
        assert_eq!(read_all(last.clone()), (0, "torn"));
        assert_eq!(read_all([last, frame(2, "b")].concat()), (0, "damaged"));
    }

    /// A write fills its last sector up with zeros, whatever of it reached the disk.
    #[test]
    fn zeros_at_the_end_are_unused_room() {
        let padded = |mut bytes: Vec<u8>| {
            bytes.resize((FILE_HEADER + bytes.len()).next_multiple_of(512) - FILE_HEADER, 0);
            bytes
        };
        let (one, two) = (frame(1, &"a".repeat(700)), frame(2, &"b".repeat(700)));
        let whole = padded([one.clone(), two.clone()].concat());
        assert_eq!(read_all(whole.clone()), (2, "end"));
        for lost in 0..whole.len().div_ceil(512) {
            // The sectors from here on never reached the disk.
            let kept = (lost * 512).saturating_sub(FILE_HEADER);
            let mut torn = whole.clone();
            torn[kept.max(one.len())..].fill(0);
            let expected = if kept <= one.len() { "end" } else { "torn" };
            assert_eq!(read_all(torn), (1, expected), "{lost} sectors");
        }
        for bit in one.len() * 8..(one.len() + two.len()) * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_all(flipped), (1, "damaged"), "bit {bit}");
        }
    }

    /// Frames of one length behind one another, each in one block, whatever the length.
    #[test]
    fn a_frame_that_fits_into_a_block_touches_one() {
        let filled = |at: usize, length: usize, block: usize| {
            let mut builder = FrameBuilder::default();
            builder.clear();
            let value = Bytes::from(vec![b'v'; length - FRAME_HEADER - RECORD_HEADER - 2]);
            builder.put(&Entry { key: "/k".into(), value, created: 2, modified: 2 }, 0);
            builder.fill(at as u64, block);
            builder.finish(1).to_vec()
        };
        for (block, length) in (63..=479).map(|length| (512, length)).chain([(4096, 120), (4096, 3000)]) {
            let mut end = 0;
            for _ in 0..20 {
                let frame = filled(end, length, block);
                assert_eq!(end / block, (end + length - 1) / block, "{length} bytes at {end}");
                assert_eq!(read_all(frame.clone()), (1, "end"));
                assert!(frame.len() == length || (end + frame.len()).is_multiple_of(block));
                end += frame.len();
            }
        }
        // There is nothing to gain.
        for (block, length) in [(1, 120), (512, 480), (512, 700), (4096, 4070)] {
            assert_eq!(filled(36, length, block).len(), length, "{length} bytes in blocks of {block}");
        }
    }

    /// Sectors of a filled frame that never reached the disk are missed, and a flipped bit in what fills it is damage.
    #[test]
    fn what_fills_a_block_is_part_of_its_frame() {
        let mut builder = FrameBuilder::default();
        builder.clear();
        let value = Bytes::from(vec![b'v'; 330]);
        builder.put(&Entry { key: "/k".into(), value, created: 2, modified: 2 }, 0);
        builder.fill(FILE_HEADER as u64 + 300, 512);
        let whole = builder.finish(1).to_vec();
        assert_eq!((FILE_HEADER + 300 + whole.len()) % 512, 0);
        let read_there = |bytes: Vec<u8>| {
            let mut reader = FrameReader::new(Box::new(io::Cursor::new(bytes)), FILE_HEADER + 300);
            match reader.next().unwrap() {
                Read1::Frame(frame) => frame.records.len(),
                Read1::Torn => 0,
                Read1::End | Read1::Damaged => usize::MAX,
            }
        };
        assert_eq!(read_there(whole.clone()), 2);
        let mut torn = whole.clone();
        torn[512 - FILE_HEADER - 300..].fill(0);
        assert_eq!(read_there(torn), 0);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_there(flipped), usize::MAX, "bit {bit}");
        }
    }

    #[test]
    fn file_headers() {
        let header = file_header(Role::Log, 7, 42);
        let expected = FileHeader { version: FORMAT, base: 7, store: Some(42), len: FILE_HEADER };
        assert_eq!(parse_file_header(&header, Role::Log), Ok(expected));
        assert_eq!(parse_file_header(&header, Role::Snapshot), Err(HeaderFault::Damaged));
        for cut in 0..header.len() {
            assert_eq!(parse_file_header(&header[..cut], Role::Log), Err(HeaderFault::Short), "{cut} bytes");
        }
        let mut newer = header;
        newer[8] = 4;
        assert_eq!(parse_file_header(&newer, Role::Log), Err(HeaderFault::Newer(4)));
    }

    #[test]
    fn headers_of_version_1_are_read() {
        let mut first = [&MAGIC[..], &1u32.to_le_bytes(), &1u32.to_le_bytes(), &7u64.to_le_bytes()].concat();
        first.extend_from_slice(&crc32c::crc32c(&first).to_le_bytes());
        first.extend_from_slice(b"a frame");
        let expected = FileHeader { version: 1, base: 7, store: None, len: FIRST_FILE_HEADER };
        assert_eq!(parse_file_header(&first, Role::Log), Ok(expected));
    }
}
