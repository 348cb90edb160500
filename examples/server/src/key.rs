//! The key that requests must have.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use std::hint::black_box;

/// Whether the headers have the key. How long that takes tells nothing of how much of it is right.
pub(crate) fn is_right(headers: &HeaderMap, key: &str) -> bool {
    let value = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
    let (scheme, given) = value.split_at_checked(7).unwrap_or_default();
    scheme.eq_ignore_ascii_case(b"bearer ") && same(given, key.as_bytes())
}

/// Compares in a time that the length of `given` alone decides.
fn same(given: &[u8], key: &[u8]) -> bool {
    let mut differs = given.len() ^ key.len();
    for (at, byte) in given.iter().enumerate() {
        let other = key.get(at % key.len().max(1)).copied().unwrap_or(0);
        differs = black_box(differs | usize::from(byte ^ other));
    }
    differs == 0
}

#[test]
fn only_the_whole_key_is_right() {
    let with = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, value.parse().expect("a header"));
        is_right(&headers, "abc")
    };
    assert!(with("Bearer abc") && with("bearer abc"));
    for wrong in ["Bearer ab", "Bearer abcabc", "Bearer abd", "Bearer ", "Basic abc", "abc", "", "Bearer  abc"] {
        assert!(!with(wrong), "{wrong}");
    }
    assert!(!is_right(&HeaderMap::new(), "abc"));
}
