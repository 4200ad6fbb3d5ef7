//! Sizes as people write them: `512B`, `1KiB`, `2MiB`.

/// Reads a size in bytes. A number without a unit is refused, as with durations.
pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let wrong = || format!("{text:?} is not a size; write it like 512B, 1KiB, 2MiB or 3GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(wrong()),
    };
    let number: usize = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::parse_bytes;

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(parse_bytes("4MiB"), Ok(4 << 20));
        assert_eq!(parse_bytes("512B"), Ok(512));
        for bad in ["", "5", "KiB", "1GB", "1.5MiB", "99999999999999999999B"] {
            assert!(parse_bytes(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
    }
}
