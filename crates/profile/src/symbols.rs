//! Which function an address is in: the files that the process runs, where they are in its memory, and their tables of symbols.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
};

/// A file that is mapped, so that its code can run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub offset: u64,
    pub file: String,
}

/// The mappings of code in `/proc/self/maps`.
pub fn mappings() -> Vec<Mapping> {
    parse(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

fn parse(maps: &str) -> Vec<Mapping> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let runs = words.next()?.contains('x');
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let file = words.nth(2)?.to_owned();
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        (runs && file.starts_with('/')).then_some(Mapping { start, end, offset, file })
    };
    maps.lines().filter_map(line).collect()
}

/// The functions of some addresses.
pub struct Found {
    pub mappings: Vec<Mapping>,
    names: BTreeMap<u64, String>,
}

impl Found {
    /// Looks the addresses up.
    pub fn of(addresses: &[u64]) -> Found {
        let mappings = mappings();
        let mut names = BTreeMap::new();
        for mapping in &mappings {
            let inside: Vec<u64> =
                addresses.iter().copied().filter(|at| (mapping.start..mapping.end).contains(at)).collect();
            // A file that cannot be read leaves its addresses without names.
            if !inside.is_empty()
                && let Ok(found) = functions(mapping, &inside)
            {
                names.extend(found);
            }
        }
        Found { mappings, names }
    }

    /// The name as the linker knows it.
    pub fn symbol(&self, address: u64) -> Option<&str> {
        self.names.get(&address).map(String::as_str)
    }

    /// The name as people know it, without the hash behind it.
    pub fn name(&self, address: u64) -> Option<String> {
        self.symbol(address).map(|symbol| format!("{:#}", rustc_demangle::demangle(symbol)))
    }
}

/// The function at an address, for people.
pub fn lookup(addresses: &[u64]) -> Vec<(u64, Option<String>)> {
    let found = Found::of(addresses);
    addresses.iter().map(|at| (*at, found.name(*at))).collect()
}

const SYMBOL_BYTES: usize = 24;
const SECTION_BYTES: usize = 64;
/// The type of a symbol that is a function, and the sections with symbols.
const FUNCTION: u8 = 2;
const SYMBOLS: u32 = 2;
const DYNAMIC_SYMBOLS: u32 = 11;
/// The flag of a segment with code, and the last address within a page.
const RUNS: u64 = 1;
const PAGE: u64 = 0xfff;
/// Names are cut.
const NAME: usize = 1024;
/// Symbols read at once.
const AT_ONCE: usize = 4096;

fn number(bytes: &[u8], at: usize, width: usize) -> io::Result<u64> {
    let field = bytes.get(at..at + width).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

fn read(file: &File, at: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

struct Section {
    kind: u32,
    offset: u64,
    size: u64,
    link: usize,
}

/// The sections of a file, and by how much its addresses are moved in memory: it was loaded where its mapping says.
fn sections(file: &File, mapping: &Mapping) -> io::Result<(Vec<Section>, u64)> {
    let head = read(file, 0, 64)?;
    // Little-endian files of 64 bits alone.
    if head[..6] != *b"\x7fELF\x02\x01" {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let (programs, count) = (number(&head, 32, 8)?, number(&head, 56, 2)?);
    let mut moved = None;
    for index in 0..count {
        let program = read(file, programs + index * 56, 56)?;
        let (kind, flags) = (number(&program, 0, 4)?, number(&program, 4, 4)?);
        let (offset, address) = (number(&program, 8, 8)?, number(&program, 16, 8)?);
        let size = number(&program, 32, 8)?;
        // Whole pages are mapped.
        let from = offset & !PAGE;
        if kind == 1 && flags & RUNS != 0 && (from..offset + size.max(1)).contains(&mapping.offset) {
            moved = Some(mapping.start.wrapping_sub((address & !PAGE) + (mapping.offset - from)));
        }
    }
    let (table, count) = (number(&head, 40, 8)?, number(&head, 60, 2)?);
    let mut all = Vec::new();
    for index in 0..count {
        let section = read(file, table + index * SECTION_BYTES as u64, SECTION_BYTES)?;
        all.push(Section {
            kind: number(&section, 4, 4)? as u32,
            offset: number(&section, 24, 8)?,
            size: number(&section, 32, 8)?,
            link: number(&section, 40, 4)? as usize,
        });
    }
    Ok((all, moved.ok_or(io::ErrorKind::InvalidData)?))
}

/// The functions that the addresses are in. The table is read piece by piece: that of a large program has hundreds of thousands.
fn functions(mapping: &Mapping, addresses: &[u64]) -> io::Result<BTreeMap<u64, String>> {
    let file = File::open(&mapping.file)?;
    let (sections, moved) = sections(&file, mapping)?;
    let table = sections.iter().find(|s| s.kind == SYMBOLS).or(sections.iter().find(|s| s.kind == DYNAMIC_SYMBOLS));
    let Some(table) = table else { return Ok(BTreeMap::new()) };
    let names = sections.get(table.link).ok_or(io::ErrorKind::InvalidData)?;
    let mut wanted: Vec<u64> = addresses.iter().map(|at| at.wrapping_sub(moved)).collect();
    wanted.sort_unstable();
    let mut found = BTreeMap::new();
    let mut at = 0;
    while at < table.size {
        let length = (table.size - at).min((AT_ONCE * SYMBOL_BYTES) as u64) as usize;
        let piece = read(&file, table.offset + at, length)?;
        at += length as u64;
        for symbol in piece.chunks_exact(SYMBOL_BYTES) {
            let (name, kind) = (number(symbol, 0, 4)?, symbol[4] & 0xf);
            let (start, size) = (number(symbol, 8, 8)?, number(symbol, 16, 8)?);
            let first = wanted.partition_point(|at| *at < start);
            let inside = wanted[first..].iter().take_while(|at| **at - start < size.max(1));
            if kind == FUNCTION && start != 0 {
                found.extend(inside.map(|at| (at.wrapping_add(moved), name)));
            }
        }
    }
    let name = |(at, name): (u64, u64)| {
        let left = usize::try_from(names.size.saturating_sub(name)).unwrap_or(NAME).min(NAME);
        let bytes = read(&file, names.offset + name, left).ok()?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some((at, String::from_utf8_lossy(&bytes[..end]).into_owned()))
    };
    Ok(found.into_iter().filter_map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_in_files_is_a_mapping() {
        let maps = "55d0-55e0 r--p 00000000 08:01 7 /bin/x\n55e0-5600 r-xp 00010000 08:01 7 /bin/x\n\
            7000-7010 r-xp 00000000 00:00 0 [vdso]\n8000-9000 r-xp 00000000 00:00 0\n";
        let expected = Mapping { start: 0x55e0, end: 0x5600, offset: 0x10000, file: "/bin/x".to_owned() };
        assert_eq!(parse(maps), [expected]);
    }

    #[inline(never)]
    fn looked_up() -> u64 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_function_is_found_by_its_address() {
        let address = looked_up as fn() -> u64 as usize as u64 + looked_up() - 7;
        let found = lookup(&[address, 3]);
        assert_eq!(found[0].1.as_deref(), Some("profile::symbols::tests::looked_up"), "{found:?}");
        assert_eq!(found[1], (3, None));
    }
}
