pub fn format_bytes(b: u64) -> String {
    format!("{b}")
}
