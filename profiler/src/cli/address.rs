//! Addresses on the command line.

/// Reads a hexadecimal address, with or without `0x`.
pub(super) fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    // from_str_radix would take a sign.
    let hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let address = u64::from_str_radix(digits, 16).ok().filter(|_| hex);
    address.ok_or_else(|| format!("{text} is no hexadecimal address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hexadecimal_with_or_without_0x() {
        assert_eq!(parse_address("0x1f"), Ok(0x1f));
        assert_eq!(parse_address("7f00"), Ok(0x7f00));
        for text in ["", "0x", "+1", "xyz", "1_0", "fffffffffffffffff"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
    }
}
