//! Checks the API keys of requests.

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

/// The accepted API keys, as digests: comparing them takes the same time for any key that
/// a client sends.
#[derive(Clone, Debug)]
pub(crate) struct Keys(Vec<[u8; 32]>);

/// Whether an HTTP request may pass, judged by the API key that it has or lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The server requires no API key.
    Free,
    /// The request has an accepted API key, the one with this index.
    Key(usize),
    /// The request has no accepted API key.
    Refused,
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|k| digest(k.as_bytes())).collect())
    }

    /// Checks whether a request's headers carry an accepted API key, and which.
    pub(crate) fn enter(&self, headers: &HeaderMap) -> Entry {
        if self.0.is_empty() {
            return Entry::Free;
        }
        let value = headers.get(header::AUTHORIZATION);
        let value = value.and_then(|v| v.to_str().ok()).unwrap_or_default();
        let key = value
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let found = digest(key.map_or("", |(_, key)| key.trim()).as_bytes());
        // All are compared, even after a match; 0 means none.
        let mut number = 0u32;
        for (key, i) in self.0.iter().zip(1u32..) {
            number.conditional_assign(&i, key.ct_eq(&found));
        }
        match number {
            0 => Entry::Refused,
            n => Entry::Key(n as usize - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_key_that_is_known_opens() {
        let keys = Keys::new(&["first key of two".into(), "second key of two".into()]);
        let headers = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, text.parse().unwrap());
            headers
        };
        assert_eq!(
            keys.enter(&headers("Bearer first key of two")),
            Entry::Key(0)
        );
        assert_eq!(
            keys.enter(&headers("bearer second key of two")),
            Entry::Key(1)
        );
        for bad in [
            "Bearer first key of tw",
            "Bearer ",
            "Basic first key of two",
            "x",
        ] {
            assert_eq!(keys.enter(&headers(bad)), Entry::Refused, "{bad}");
        }
        assert_eq!(keys.enter(&HeaderMap::new()), Entry::Refused);
        assert_eq!(Keys::new(&[]).enter(&HeaderMap::new()), Entry::Free);
    }
}
