//! FNV-1a: a short hash that never changes between versions and machines, for names that are made from other names.

pub fn fnv_32<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

pub fn fnv_64<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325;
    bytes.into_iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    #[test]
    fn hashes_are_the_published_ones() {
        assert_eq!(super::fnv_32(b"foobar"), 0xbf9c_f968);
        assert_eq!(super::fnv_64(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
