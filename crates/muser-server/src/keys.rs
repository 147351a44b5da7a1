//! API keys.

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// The keys that are accepted, as digests: comparing them takes the same time
/// whatever a client sends, and however long.
#[derive(Clone)]
pub(crate) struct Keys(Vec<[u8; 32]>);

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|k| digest(k)).collect())
    }

    /// Whether these headers carry a key, or none is asked for.
    pub(crate) fn accept(&self, headers: &HeaderMap) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let value = headers.get(header::AUTHORIZATION);
        let value = value.and_then(|v| v.to_str().ok()).unwrap_or_default();
        let key = value
            .split_once(' ')
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let found = digest(key.map_or("", |(_, key)| key.trim()));
        // All are compared, whichever matches.
        let each = self.0.iter().map(|k| k.ct_eq(&found));
        each.fold(Choice::from(0), |any, one| any | one).into()
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
        assert!(keys.accept(&headers("Bearer first key of two")));
        assert!(keys.accept(&headers("bearer second key of two")));
        for bad in [
            "Bearer first key of tw",
            "Bearer ",
            "Basic first key of two",
            "x",
        ] {
            assert!(!keys.accept(&headers(bad)), "{bad}");
        }
        assert!(!keys.accept(&HeaderMap::new()));
        assert!(Keys::new(&[]).accept(&HeaderMap::new()));
    }
}
