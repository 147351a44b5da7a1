//! Decides which host names (in `Host`) and which web pages (in `Origin`) are answered.
//!
//! A page of any server can reach this machine under its own name (DNS rebinding) or
//! send requests to it directly. Without API keys, only the names distinguish such a
//! request from the user's own. So only loopback names are answered, in `Host` and in
//! `Origin`, and names that the operator allows. With keys, a page would need one;
//! then `Origin` decides only what browsers are told (CORS).

use crate::error::ApiError;
use crate::listen::head::{host_of, is_loopback};
use crate::options::{Options, StartError};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};

/// A server's rules on the host names and the web pages whose requests are answered.
#[derive(Debug)]
pub(crate) struct Sites {
    /// Whether host names and origins of web pages are checked: they are if the server
    /// has no API keys.
    strict: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
    any_origin: bool,
}

/// The most bytes of a browser's list of headers (`Access-Control-Request-Headers`) that
/// is sent back to it.
const ASKED: usize = 1024;

impl Sites {
    /// Makes the rules on host names and web pages from the server's options.
    ///
    /// # Errors
    /// A malformed host or origin, or all origins without a key.
    pub(crate) fn new(options: &Options) -> Result<Self, StartError> {
        let strict = options.api_keys.is_empty();
        let wrong = |name, expected: &str, found: &str| {
            Err(StartError::Option {
                name,
                expected: expected.to_owned(),
                found: format!("{found:?}"),
            })
        };
        for host in &options.allowed_hosts {
            if host_of(host).is_none_or(|h| h.len() != host.len() && !host.starts_with('[')) {
                return wrong("allow-host", "a host name without a port", host);
            }
        }
        let mut any_origin = false;
        for origin in &options.allowed_origins {
            match origin.as_str() {
                "*" if strict => {
                    return wrong("allow-origin", "an origin, or * with API keys", origin);
                }
                "*" => any_origin = true,
                "null" => {}
                _ if authority(origin).is_some() => {}
                _ => {
                    let expected = "an origin such as https://app.example";
                    return wrong("allow-origin", expected, origin);
                }
            }
        }
        Ok(Self {
            strict,
            hosts: options.allowed_hosts.clone(),
            origins: options.allowed_origins.clone(),
            any_origin,
        })
    }

    /// Refuses a request to a host name, or from a web page, that is neither this
    /// machine's nor allowed by the operator.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.strict {
            return Ok(());
        }
        let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
        let named = host.map(|h| std::str::from_utf8(h).unwrap_or(""));
        // The header and the target are both checked: a request to a proxy has the host
        // in its target.
        for authority in [named, uri.authority().map(|a| a.as_str())]
            .into_iter()
            .flatten()
        {
            let host = host_of(authority);
            if !host.is_some_and(|h| self.knows(h)) {
                let message = format!(
                    "Host: expected a name of this machine such as localhost, found \
                     {}; --allow-host allows another",
                    shown(authority)
                );
                return Err(ApiError::forbidden(message, "host_not_allowed"));
            }
        }
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Ok(());
        };
        let origin = origin.to_str().unwrap_or("");
        let known = authority(origin)
            .and_then(host_of)
            .is_some_and(|h| self.knows(h));
        if known || self.lists(origin) {
            return Ok(());
        }
        let message = format!(
            "Origin: expected a page of this machine, found {}; --allow-origin allows another",
            shown(origin)
        );
        Err(ApiError::forbidden(message, "origin_not_allowed"))
    }

    fn knows(&self, host: &str) -> bool {
        let bare = |h: &str| {
            h.trim_start_matches('[')
                .trim_end_matches(']')
                .to_ascii_lowercase()
        };
        is_loopback(host) || self.hosts.iter().any(|h| bare(h) == bare(host))
    }

    fn lists(&self, origin: &str) -> bool {
        self.any_origin || self.origins.iter().any(|o| o.eq_ignore_ascii_case(origin))
    }

    /// Answers a browser's CORS preflight, which asks whether a page's request may be
    /// sent. `None` if this is no preflight, or if the page is not allowed.
    pub(crate) fn preflight<B: Default>(
        &self,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Response<B>> {
        let asks = headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        let origin = headers.get(header::ORIGIN)?;
        if method != Method::OPTIONS || !asks || !self.lists(origin.to_str().ok()?) {
            return None;
        }
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::NO_CONTENT;
        let found = response.headers_mut();
        let methods = HeaderValue::from_static("GET, HEAD, POST");
        found.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let usual = HeaderValue::from_static("authorization, content-type");
        let asked = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        // Clients send headers of their own, which are ignored here.
        let asked = asked.filter(|h| h.len() <= ASKED).cloned();
        found.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(usual));
        let seconds = HeaderValue::from_static("600");
        found.insert(header::ACCESS_CONTROL_MAX_AGE, seconds);
        let private = "access-control-request-private-network";
        if headers.contains_key(private) {
            let allow = header::HeaderName::from_static("access-control-allow-private-network");
            found.insert(allow, HeaderValue::from_static("true"));
        }
        Some(response)
    }

    /// Adds to an answer the CORS headers which tell a browser that the web page that
    /// asked may read the answer.
    pub(crate) fn share(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        let listed = origin.filter(|o| o.to_str().is_ok_and(|o| self.lists(o)));
        if let Some(origin) = listed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            let exposed = HeaderValue::from_static("retry-after");
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

/// Returns the part of a web origin after its scheme; `None` if it is no origin.
fn authority(origin: &str) -> Option<&str> {
    let (scheme, rest) = origin.split_once("://")?;
    let letters = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let fits = !scheme.is_empty() && scheme.chars().all(letters);
    (fits && host_of(rest).is_some() && !rest.contains(['/', '@'])).then_some(rest)
}

/// Makes a host name or an origin from a request fit for an error's message: cuts and
/// quotes it.
fn shown(name: &str) -> String {
    let cut: String = name.chars().take(80).collect();
    format!("{cut:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites(keys: &[&str], hosts: &[&str], origins: &[&str]) -> Result<Sites, StartError> {
        let owned = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect();
        Sites::new(&Options {
            api_keys: owned(keys),
            allowed_hosts: owned(hosts),
            allowed_origins: owned(origins),
            ..Options::new(([127, 0, 0, 1], 0).into(), "m")
        })
    }

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let each = all.iter();
        each.map(|(name, value)| {
            (
                header::HeaderName::from_static(name),
                value.parse().unwrap(),
            )
        })
        .collect()
    }

    #[test]
    fn without_keys_names_of_this_machine_only() {
        let plain = sites(&[], &[], &[]).unwrap();
        let more = sites(&[], &["box.lan"], &["https://app.example"]).unwrap();
        let root = Uri::from_static("/");
        for (host, origin, by_plain, by_more) in [
            ("localhost:8080", None, true, true),
            ("127.0.0.1", Some("http://127.0.0.1:8080"), true, true),
            ("[::1]:1", Some("http://[::1]:1"), true, true),
            ("evil.example", None, false, false),
            ("localhost", Some("https://evil.example"), false, false),
            ("localhost", Some("null"), false, false),
            ("localhost", Some(""), false, false),
            ("BOX.lan:80", Some("http://box.lan"), false, true),
            ("localhost", Some("https://app.example"), false, true),
            ("localhost", Some("http://app.example"), false, false),
            (
                "localhost",
                Some("http://localhost.evil.example"),
                false,
                false,
            ),
            (
                "localhost",
                Some("http://localhost@evil.example"),
                false,
                false,
            ),
        ] {
            let mut all = vec![("host", host)];
            all.extend(origin.map(|o| ("origin", o)));
            let all = headers(&all);
            let found = |s: &Sites| s.check(&root, &all).is_ok();
            assert_eq!(found(&plain), by_plain, "{host} {origin:?}");
            assert_eq!(found(&more), by_more, "{host} {origin:?}");
        }
        let target = Uri::from_static("http://evil.example/");
        assert!(
            plain
                .check(&target, &headers(&[("host", "localhost")]))
                .is_err()
        );
    }

    #[test]
    fn with_keys_browsers_are_told_which_pages_may() {
        let sites = sites(&["k"], &[], &["https://app.example"]).unwrap();
        let evil = headers(&[("host", "x"), ("origin", "https://evil.example")]);
        assert!(sites.check(&Uri::from_static("/"), &evil).is_ok());
        let mut told = HeaderMap::new();
        sites.share(evil.get("origin"), &mut told);
        assert_eq!(told["vary"], "Origin");
        assert!(!told.contains_key("access-control-allow-origin"));
        let page = headers(&[
            ("origin", "https://app.example"),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization, x-stainless-os",
            ),
        ]);
        let answer = sites.preflight::<()>(&Method::OPTIONS, &page).unwrap();
        assert_eq!(answer.status(), 204);
        let found = answer.headers();
        assert_eq!(
            found["access-control-allow-headers"],
            "authorization, x-stainless-os"
        );
        assert!(sites.preflight::<()>(&Method::POST, &page).is_none());
        let mut told = HeaderMap::new();
        sites.share(page.get("origin"), &mut told);
        assert_eq!(told["access-control-allow-origin"], "https://app.example");
    }

    #[test]
    fn what_is_no_name_is_refused_at_the_start() {
        assert!(sites(&[], &[], &["*"]).is_err());
        sites(&["k"], &[], &["*", "null", "https://a.example:8443"]).unwrap();
        for origin in ["", "app.example", "https://a/b", "https://u@a", "https://"] {
            assert!(sites(&["k"], &[], &[origin]).is_err(), "{origin}");
        }
        for host in ["", "a:80", "a b:"] {
            assert!(sites(&[], &[host], &[]).is_err(), "{host}");
        }
        sites(&[], &["[2001:db8::1]", "a.example"], &[]).unwrap();
    }
}
