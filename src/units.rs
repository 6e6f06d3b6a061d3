//! Bytes and tokens as people write them.

use anyhow::Result;

use crate::bad_input;

const BYTE_UNITS: [(&str, f64); 9] = [
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("KB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("B", 1.0),
];

const TOKEN_UNITS: [(&str, f64); 2] = [("k", 1024.0), ("M", 1_048_576.0)];

/// A number with one of the units, as a whole count.
fn parse(text: &str, units: &[(&str, f64)]) -> Option<u64> {
    let text = text.trim();
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor))).unwrap_or((text, 1.0));
    let number = number.trim().replace('_', "");
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let value = number.parse::<f64>().ok().filter(|_| plain)? * factor;
    ((0.0..9.2e18).contains(&value) && value.fract() == 0.0).then_some(value as u64)
}

/// "80GiB", "1.5 MiB", "1048576": bytes. GiB is 2³⁰ bytes, GB is 10⁹.
pub fn parse_bytes(text: &str) -> Result<u64> {
    match parse(text, &BYTE_UNITS) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => bad_input!("`{text}` is no number of bytes: write 80GiB, 512MiB, 1.5GiB or 1048576"),
    }
}

/// "1M", "160k", "32768": tokens. k is 1024, M is 1,048,576.
pub fn parse_tokens(text: &str) -> Result<u64> {
    match parse(text, &TOKEN_UNITS) {
        Some(tokens) if tokens > 0 => Ok(tokens),
        _ => bad_input!("`{text}` is no number of tokens: write 1M, 160k or 32768"),
    }
}

/// Bytes in the largest unit that leaves a whole part: "9.54 MiB".
pub fn format_bytes(bytes: u64) -> String {
    let unit = BYTE_UNITS[..4].iter().rev().find(|(_, factor)| bytes as f64 >= *factor);
    match unit {
        Some((unit, factor)) => {
            let value = bytes as f64 / factor;
            let digits = if value < 10.0 { 2 } else { 1 };
            format!("{value:.digits$} {unit}")
        }
        None => format!("{bytes} B"),
    }
}

/// Seconds with three digits that count, or as many as their whole part has: "0.0123", "38.1", "1240".
pub fn format_seconds(seconds: f64) -> String {
    if seconds == 0.0 {
        return "0".to_string();
    }
    let digits = (2.0 - seconds.abs().log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{seconds:.digits$}")
}

/// Tokens with separators: "1,048,576".
pub fn format_tokens(tokens: u64) -> String {
    let digits = tokens.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes() {
        assert_eq!(parse_bytes("80GiB").unwrap(), 80 << 30);
        assert_eq!(parse_bytes(" 1.5 MiB").unwrap(), 3 << 19);
        assert_eq!(parse_bytes("1_048_576").unwrap(), 1 << 20);
        assert_eq!(parse_bytes("2GB").unwrap(), 2_000_000_000);
        for wrong in ["", "GiB", "-1GiB", "1e9", "nan", "inf", "0", "0.3B", "1.2.3MiB", "99999999TiB", "1 GIB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(format_bytes(10 << 20), "10.0 MiB");
        assert_eq!(format_bytes(1000), "1000 B");
        assert_eq!(format_bytes((80u64 << 30) + (1 << 28)), "80.2 GiB");
    }

    #[test]
    fn tokens() {
        assert_eq!(parse_tokens("1M").unwrap(), 1_048_576);
        assert_eq!(parse_tokens("160k").unwrap(), 163_840);
        assert_eq!(parse_tokens("96").unwrap(), 96);
        assert!(parse_tokens("0").is_err() && parse_tokens("1G").is_err());
        assert_eq!(format_tokens(1_048_576), "1,048,576");
        assert_eq!(format_tokens(96), "96");
    }
}
