//! The 6-bit scales s_i and minima m_i of eight sub-blocks, which Q4_K and Q5_K pack
//! into twelve bytes.
//!
//! ```text
//! byte      7 6 | 5 4 3 2 1 0
//!  0..=3    s'4+i  s_i                i = byte          s_0..s_3 whole,
//!  4..=7    m'4+i  m_i                i = byte - 4      m_0..m_3 whole
//!
//! byte      7 6 5 4 | 3 2 1 0
//!  8..=11   m"4+i     s"4+i           i = byte - 8
//!
//! s_4+i = s'4+i << 4 | s"4+i          high two bits from bytes 0..=3,
//! m_4+i = m'4+i << 4 | m"4+i          low four from bytes 8..=11
//! ```

/// Unpacks the eight 6-bit scales and eight 6-bit minima of a Q4_K or Q5_K superblock,
/// each `0..=63`, from their 12 bytes.
pub(crate) fn unpack(p: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for i in 0..4 {
        scales[i] = p[i] & 63;
        mins[i] = p[4 + i] & 63;
        scales[4 + i] = (p[i] >> 6) << 4 | (p[8 + i] & 15);
        mins[4 + i] = (p[4 + i] >> 6) << 4 | (p[8 + i] >> 4);
    }
    (scales, mins)
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_field_has_its_own_six_bits() {
        // One bit set at a time lands in exactly one field, and all 96 bits
        // are used.
        let mut seen = std::collections::BTreeSet::new();
        for bit in 0..96 {
            let mut p = [0u8; 12];
            p[bit / 8] = 1 << (bit % 8);
            let (s, m) = super::unpack(&p);
            let set: Vec<(char, usize, u8)> = (0..8)
                .flat_map(|i| [('s', i, s[i]), ('m', i, m[i])])
                .filter(|t| t.2 != 0)
                .collect();
            assert_eq!(set.len(), 1, "bit {bit} set {set:?}");
            assert_eq!(set[0].2.count_ones(), 1);
            assert!(set[0].2 < 64);
            assert!(seen.insert(set[0]));
        }
        assert_eq!(seen.len(), 96);
    }
}
