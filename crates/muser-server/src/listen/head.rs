//! Parses the head of an HTTP request, so strictly that no two readers can understand it
//! differently.
//!
//! The HTTP library reads leniently: a bare line feed ends a line, and of a
//! transfer encoding and a length the length is dropped. A proxy in front may
//! read otherwise and see another request in the same bytes. So what could mean
//! two things is refused here, before the library sees it, and with the body
//! that clients of this API read.

use crate::error::ApiError;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use std::net::IpAddr;

/// The most bytes of a request's head: the request line and the headers.
pub(crate) const HEAD: usize = 64 << 10;
/// The most headers of a request.
pub(crate) const HEADERS: usize = 64;
/// The most bytes of a request's target (its path and query).
const TARGET: usize = 8 << 10;
/// The most empty lines before a request line, which some clients send.
const EMPTY_LINES: usize = 2;

/// What body follows the head of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// A body of this many bytes, often none.
    Sized(u64),
    /// A body in HTTP chunks; the connection ends with the answer to its request.
    Chunked,
}

/// What the bytes received of a request so far are: a part of its head, a whole head, or
/// no valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The bytes are a part of a request's head.
    Partial,
    /// The bytes begin with a whole head of this length, which announces this body.
    Whole { length: usize, body: BodyKind },
    /// The bytes are no valid request; the error is the answer to it.
    Refused(ApiError),
}

fn bad(message: impl Into<String>) -> Scan {
    Scan::Refused(ApiError::invalid(message).code("bad_request_head"))
}

fn refused(status: StatusCode, message: String) -> Scan {
    Scan::Refused(ApiError::status(status, message).code("bad_request_head"))
}

/// Searches the bytes received so far for the end of a request's head, and checks the
/// head. The first `seen` bytes were searched before and hold no end.
pub(crate) fn scan(bytes: &[u8], seen: usize) -> Scan {
    let from = seen.saturating_sub(3);
    let mut end = None;
    for i in from..bytes.len().min(HEAD + 1) {
        match bytes[i] {
            b'\n' if i == 0 || bytes[i - 1] != b'\r' => {
                return bad("the head: expected lines that end in CR LF, found LF alone");
            }
            b'\n' if i >= 3 && &bytes[i - 3..i] == b"\r\n\r" && !is_leading(bytes, i) => {
                end = Some(i + 1);
                break;
            }
            b'\n' => {}
            _ if i > 0 && bytes[i - 1] == b'\r' => {
                return bad("the head: expected lines that end in CR LF, found CR alone");
            }
            _ => {}
        }
    }
    match end {
        Some(end) if end <= HEAD => parse(&bytes[..end]),
        None if bytes.len() <= HEAD => Scan::Partial,
        _ => too_long(bytes),
    }
}

/// Whether all bytes up to `last` are the few empty lines that may come before a request.
fn is_leading(bytes: &[u8], last: usize) -> bool {
    bytes[..=last].iter().all(|b| matches!(b, b'\r' | b'\n')) && last < 2 * EMPTY_LINES
}

fn too_long(bytes: &[u8]) -> Scan {
    let line = bytes
        .iter()
        .position(|&b| b == b'\r')
        .unwrap_or(bytes.len());
    match line > TARGET + 64 {
        true => target_too_long(line),
        false => refused(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!("the head: expected at most {HEAD} bytes, found more"),
        ),
    }
}

fn target_too_long(found: usize) -> Scan {
    refused(
        StatusCode::URI_TOO_LONG,
        format!("the request's target: expected at most {TARGET} bytes, found {found} or more"),
    )
}

fn parse(bytes: &[u8]) -> Scan {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return bad("the head is cut off"),
        Err(httparse::Error::TooManyHeaders) => {
            return refused(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                format!("the head: expected at most {HEADERS} headers, found more"),
            );
        }
        Err(httparse::Error::Version) => {
            let message = "the request line: expected HTTP/1.1 or HTTP/1.0".to_owned();
            return refused(StatusCode::HTTP_VERSION_NOT_SUPPORTED, message);
        }
        Err(e) => return bad(format!("the head is no HTTP: {e}")),
    }
    let (method, target) = (request.method.unwrap_or(""), request.path.unwrap_or(""));
    if target.len() > TARGET {
        return target_too_long(target.len());
    }
    // Refused here because the HTTP library would refuse it in words of its own.
    if Method::from_bytes(method.as_bytes()).is_err() || Uri::try_from(target).is_err() {
        return bad("the request line: expected a method and a target");
    }
    if method.eq_ignore_ascii_case("CONNECT") {
        return refused(
            StatusCode::METHOD_NOT_ALLOWED,
            "this server is no proxy".into(),
        );
    }
    let headers = request.headers.iter();
    let odd = headers.clone().find(|h| {
        HeaderName::from_bytes(h.name.as_bytes()).is_err()
            || HeaderValue::from_bytes(h.value).is_err()
    });
    if odd.is_some() {
        return bad("a header: expected a name and a value");
    }
    match framing(&request) {
        Ok(body) => Scan::Whole {
            length: bytes.len(),
            body,
        },
        Err(scan) => scan,
    }
}

/// Returns what body a request's head announces, or refuses a head that can be understood
/// in two ways.
fn framing(request: &httparse::Request<'_, '_>) -> Result<BodyKind, Scan> {
    let values = |name: &'static str| {
        let all = request.headers.iter();
        all.filter(move |h| h.name.eq_ignore_ascii_case(name))
            .map(|h| h.value)
    };
    let modern = request.version == Some(1);
    match (values("host").count(), modern) {
        (1, _) | (0, false) => {}
        (found, _) => {
            let message = format!("Host: expected one such header, found {found}");
            return Err(bad(message));
        }
    }
    let mut lengths = values("content-length");
    let mut encodings = values("transfer-encoding");
    match (lengths.next(), encodings.next()) {
        (None, None) => Ok(BodyKind::Sized(0)),
        (Some(_), Some(_)) => Err(bad(
            "expected Content-Length or Transfer-Encoding, found both",
        )),
        (Some(length), None) => {
            if lengths.next().is_some() {
                return Err(bad("Content-Length: expected one such header, found more"));
            }
            let digits = !length.is_empty() && length.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(length).ok().filter(|_| digits);
            let number = number.and_then(|n| n.parse().ok());
            // The HTTP library's own bound.
            let number = number.filter(|&n: &u64| n < u64::MAX - 2);
            number
                .map(BodyKind::Sized)
                .ok_or_else(|| bad("Content-Length: expected a number of bytes"))
        }
        (None, Some(encoding)) => {
            let chunked = encoding.trim_ascii().eq_ignore_ascii_case(b"chunked");
            if !modern || !chunked || encodings.next().is_some() {
                let message = "Transfer-Encoding: expected chunked and nothing else, over HTTP/1.1";
                return Err(bad(message));
            }
            Ok(BodyKind::Chunked)
        }
    }
}

/// Returns the host of a `Host` header or a URI's authority, without its port; `None` if
/// it is malformed.
pub(crate) fn host_of(authority: &str) -> Option<&str> {
    let port = |rest: &str| {
        rest.is_empty()
            || rest
                .strip_prefix(':')
                .is_some_and(|p| p.len() <= 5 && p.bytes().all(|b| b.is_ascii_digit()))
    };
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return port(rest).then_some(host);
    }
    let end = authority.find(':').unwrap_or(authority.len());
    let (host, rest) = authority.split_at(end);
    (port(rest) && !host.is_empty()).then_some(host)
}

/// Whether a host name means this machine (loopback), whoever resolves it.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let name = host.eq_ignore_ascii_case("localhost")
        || host
            .len()
            .checked_sub(".localhost".len())
            .and_then(|at| host.get(at..))
            .is_some_and(|end| end.eq_ignore_ascii_case(".localhost"));
    name || host
        .parse::<IpAddr>()
        .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(head: &str) -> u16 {
        match scan(head.as_bytes(), 0) {
            Scan::Refused(error) => error.status.as_u16(),
            Scan::Whole { length, .. } => {
                assert_eq!(length, head.len());
                200
            }
            Scan::Partial => 0,
        }
    }

    #[test]
    fn one_meaning_or_none() {
        let head = |lines: &str| format!("POST /x HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        for (head, expected) in [
            (head(""), 200),
            (head("Content-Length: 5\r\n"), 200),
            (head("Transfer-Encoding: Chunked\r\n"), 200),
            (format!("\r\n{}", head("")), 200),
            ("GET / HTTP/1.0\r\n\r\n".into(), 200),
            ("GET / HTTP/1.1\r\n\r\n".into(), 400),
            (head("Host: b\r\n"), 400),
            (
                head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
                400,
            ),
            (
                head("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
                400,
            ),
            (head("Content-Length: 5\r\nContent-Length: 5\r\n"), 400),
            (head("Content-Length: +5\r\n"), 400),
            (head("Content-Length: 5, 5\r\n"), 400),
            (head("Content-Length: \r\n"), 400),
            (head("Content-Length: 99999999999999999999\r\n"), 400),
            (head("Transfer-Encoding: gzip, chunked\r\n"), 400),
            (head("Transfer-Encoding: identity\r\n"), 400),
            (head("Transfer-Encoding : chunked\r\n"), 400),
            (head("A: b\r\n c\r\n"), 400),
            (head("A: b\nC: d\r\n"), 400),
            (head("A: b\rC: d\r\n"), 400),
            (head("A: \0\r\n"), 400),
            ("POST /x HTTP/1.1\nHost: a\n\n".into(), 400),
            ("POST /x HTTP/2.0\r\nHost: a\r\n\r\n".into(), 505),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n".into(), 405),
            ("\0\u{1}\r\n\r\n".into(), 400),
            ("\r\n\r\n\r\n\r\n\r\n".into(), 400),
            (head(&"A: b\r\n".repeat(63)), 200),
            (head(&"A: b\r\n".repeat(64)), 431),
            (head(&format!("A: {}\r\n", "b".repeat(HEAD))), 431),
            (
                format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(9000)),
                414,
            ),
            (
                format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(99_000)),
                414,
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\n".into(), 0),
            ("".into(), 0),
        ] {
            assert_eq!(
                status(&head),
                expected,
                "{:?}",
                &head[..head.len().min(200)]
            );
        }
        let whole = "x".repeat(HEAD - head("A: \r\n").len());
        let just = head(&format!("A: {whole}\r\n"));
        assert_eq!((just.len(), status(&just)), (HEAD, 200));
        assert_eq!(status(&head(&format!("A: {whole}x\r\n"))), 431);
    }

    #[test]
    fn a_head_in_pieces_is_the_same_head() {
        let head = "\r\nPOST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n";
        let mut seen = 0;
        for end in 0..head.len() {
            assert_eq!(scan(&head.as_bytes()[..end], seen), Scan::Partial, "{end}");
            seen = end;
        }
        let whole = Scan::Whole {
            length: head.len(),
            body: BodyKind::Sized(7),
        };
        assert_eq!(scan(format!("{head}rest").as_bytes(), seen), whole);
    }

    #[test]
    fn loopback_names_and_no_others() {
        for (authority, expected) in [
            ("localhost", true),
            ("LOCALHOST:8080", true),
            ("app.localhost:1", true),
            ("localhost.", true),
            ("127.0.0.1:8080", true),
            ("127.9.9.9", true),
            ("[::1]:8080", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]", true),
            ("evil.example", false),
            ("localhost.evil.example", false),
            ("evillocalhost", false),
            ("127.0.0.1.evil.example", false),
            ("192.0.2.1", false),
            ("localhost:x", false),
            ("localhost:80:90", false),
            ("user@localhost", false),
            ("[::1", false),
            ("", false),
            ("0", false),
        ] {
            let found = host_of(authority).is_some_and(is_loopback);
            assert_eq!(found, expected, "{authority:?}");
        }
    }
}
