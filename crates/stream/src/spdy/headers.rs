//! Header blocks of SPDY/3.1: pairs of names and values, through zlib with a dictionary that both sides know.
//!
//! The `flate2` backend in use knows no dictionaries, and none is needed. Inflating, the dictionary is fed as an
//! uncompressed block of the raw stream, which puts it into the window that later blocks refer to. Deflating, blocks
//! are stored as they are, which every reader of the format understands; headers here are a handful of short words.

use std::sync::LazyLock;

use flate2::{Decompress, FlushDecompress};

/// Names (in lower case) and values, in order.
pub type Headers = Vec<(String, String)>;

/// A header block may not unfold to more.
const LIMIT: usize = 64 << 10;
/// The most bytes that a stored block holds.
const STORED: usize = 65_535;

/// Words of the dictionary that come with their length before them, then those that come without (SPDY draft 3,
/// section 2.6.10.1).
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|accept-language|\
    accept-ranges|age|allow|authorization|cache-control|connection|content-base|content-encoding|content-language|\
    content-length|content-location|content-md5|content-range|content-type|date|etag|expect|expires|from|host|\
    if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|\
    proxy-authenticate|proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|\
    user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|public|set-cookie|\
    keep-alive|origin";
const TAIL: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized\
    403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable\
    Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT\
    chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,\
    publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";
/// The zlib header that announces a dictionary, and the dictionary's Adler-32 checksum.
const PREFIX: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];

static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::new();
    for word in WORDS.split('|') {
        dictionary.extend_from_slice(&(word.len() as u32).to_be_bytes());
        dictionary.extend_from_slice(word.as_bytes());
    }
    dictionary.extend_from_slice(TAIL.as_bytes());
    dictionary
});

fn stored_block(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = bytes.len() as u16;
    out.push(0);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&(!length).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The sending half of a connection's compression.
#[derive(Default)]
pub(super) struct Encoder {
    started: bool,
}

impl Encoder {
    pub fn encode(&mut self, headers: &[(String, String)]) -> Vec<u8> {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        let mut out = if self.started { Vec::new() } else { PREFIX.to_vec() };
        self.started = true;
        plain.chunks(STORED).for_each(|chunk| stored_block(&mut out, chunk));
        // An empty block makes readers hand out what they have.
        stored_block(&mut out, &[]);
        out
    }
}

/// The receiving half.
pub(super) struct Decoder {
    inflate: Decompress,
    started: bool,
}

impl Decoder {
    pub fn new() -> Self {
        Decoder { inflate: Decompress::new(false), started: false }
    }

    /// `None` when the block is broken; then so is the whole connection.
    pub fn decode(&mut self, mut block: &[u8]) -> Option<Headers> {
        if !self.started {
            // Check bits of the first two bytes depend on the level that the other side compresses with.
            let (zlib, rest) = block.split_at_checked(PREFIX.len())?;
            if zlib[0] & 0x0f != 8 || zlib[1] & 0x20 == 0 || zlib[2..] != PREFIX[2..] {
                return None;
            }
            block = rest;
            self.started = true;
            let mut first = Vec::new();
            stored_block(&mut first, &DICTIONARY);
            self.unfold(&first)?;
        }
        let plain = self.unfold(block)?;
        let mut rest = &plain[..];
        let count = take_number(&mut rest)?;
        let mut headers = Headers::new();
        for _ in 0..count {
            let (name, value) = (take_text(&mut rest)?, take_text(&mut rest)?);
            headers.push((name, value));
        }
        Some(headers)
    }

    fn unfold(&mut self, mut input: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(4096);
        loop {
            let (read, written) = (self.inflate.total_in(), out.len());
            self.inflate.decompress_vec(input, &mut out, FlushDecompress::Sync).ok()?;
            let read = (self.inflate.total_in() - read) as usize;
            input = &input[read..];
            if out.len() > LIMIT {
                return None;
            }
            if out.len() == out.capacity() {
                out.reserve(4096);
            } else if input.is_empty() || (read == 0 && out.len() == written) {
                return input.is_empty().then_some(out);
            }
        }
    }
}

fn take_number(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*number))
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let length = take_number(bytes)? as usize;
    let (text, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    String::from_utf8(text.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(text: &[(&str, &str)]) -> Headers {
        text.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn blocks_come_back() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::new());
        let long = "x".repeat(5000);
        for block in [headers(&[("streamtype", "error")]), headers(&[]), headers(&[("a", &long), ("b", "")])] {
            assert_eq!(decoder.decode(&encoder.encode(&block)), Some(block));
        }
    }

    /// Two blocks as zlib itself deflates them, with the dictionary and a sync flush after each.
    #[test]
    fn blocks_of_other_writers_are_read() {
        let mut decoder = Decoder::new();
        assert_eq!(decoder.decode(FIRST), Some(headers(&[("streamtype", "error"), ("content-type", "text/plain")])));
        assert_eq!(decoder.decode(SECOND), Some(headers(&[("streamtype", "stdout"), ("content-type", "text/plain")])));
    }

    #[test]
    fn broken_blocks_are_refused() {
        assert_eq!(Decoder::new().decode(b""), None);
        assert_eq!(Decoder::new().decode(&[0x78, 0x9c, 1, 2, 3, 4, 5]), None);
        let mut short = Encoder::default().encode(&headers(&[("a", "b")]));
        short.truncate(15);
        assert_eq!(Decoder::new().decode(&short), None);
    }

    const FIRST: &[u8] = &[
        120, 249, 227, 198, 167, 194, 2, 229, 14, 112, 58, 43, 41, 74, 77, 204, 133, 22, 37, 172, 169, 160, 128, 198,
        82, 198, 112, 33, 28, 7, 0, 0, 0, 255, 255,
    ];

    const SECOND: &[u8] = &[194, 170, 17, 152, 212, 83, 242, 193, 37, 56, 30, 157, 0, 0, 0, 0, 255, 255];
}
