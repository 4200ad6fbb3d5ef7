//! Protection against request smuggling: refuses HTTP/1 that two parsers could read differently.
//!
//! If one server reads one request where the next reads two, an attacker can inject a request into another client's
//! connection. hyper is as tolerant as RFC 9112 allows (it drops a `Content-Length` beside a `Transfer-Encoding`, and
//! accepts a bare LF as the end of a line). Here such input is refused: every head and every chunk is parsed before
//! hyper sees it, by rules that are a subset of hyper's, so that both agree where a request ends.

use std::mem::{self, MaybeUninit};

/// Longest chunk-size line, extensions included.
const CHUNK_LINE_BYTES_MAX: usize = 256;

/// Most headers that can be allowed.
pub(super) const HEADERS_MAX: usize = 256;

/// Bounds of a request's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeadLimits {
    pub(super) head_bytes_max: usize,
    pub(super) headers_max: usize,
}

/// Why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Refusal {
    /// Not HTTP/1.0 or 1.1, or not well formed.
    Malformed,
    /// A line that does not end in CR LF.
    BareLineEnd,
    /// Both Content-Length and Transfer-Encoding.
    TwoFramings,
    /// A Content-Length that is repeated or not a plain number.
    ContentLength,
    /// A Transfer-Encoding other than `chunked`, or in HTTP/1.0.
    TransferEncoding,
    /// A malformed chunk.
    Chunk,
    /// More headers, or more bytes of headers, than allowed.
    TooLarge,
}

impl Refusal {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::BareLineEnd => "bare_line_end",
            Self::TwoFramings => "two_framings",
            Self::ContentLength => "content_length",
            Self::TransferEncoding => "transfer_encoding",
            Self::Chunk => "chunk",
            Self::TooLarge => "too_large",
        }
    }
}

enum State {
    /// In a head; the bytes so far.
    Head(Vec<u8>),
    /// In a body; the bytes left.
    Length(u64),
    /// In a chunk-size line; the bytes so far.
    ChunkSize(Vec<u8>),
    /// In a chunk; the bytes left, its CR LF included.
    ChunkData(u64),
    /// In the trailers; the bytes so far.
    Trailers(Vec<u8>),
    Refused,
}

/// Parses the bytes of a connection before hyper does.
pub(super) struct Inspector {
    limits: HeadLimits,
    state: State,
}

impl Inspector {
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self { limits, state: State::Head(Vec::new()) }
    }

    /// A head has begun and is not complete yet.
    pub(super) fn is_in_head(&self) -> bool {
        matches!(&self.state, State::Head(head) if !head.is_empty())
    }

    /// The last request is complete, and no other has begun.
    pub(super) fn is_between(&self) -> bool {
        matches!(&self.state, State::Head(head) if head.is_empty())
    }

    /// Inspects the bytes and appends to `out` what hyper may read. After a refusal nothing more is appended.
    pub(super) fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
        while !bytes.is_empty() {
            match self.step(bytes, out) {
                Ok(taken) => bytes = &bytes[taken..],
                Err(refusal) => {
                    self.state = State::Refused;
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    fn step(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Refusal> {
        match &mut self.state {
            State::Refused => Ok(bytes.len()),
            State::Head(head) => {
                let head = mem::take(head);
                self.head(head, bytes, out)
            }
            State::Length(left) => {
                let taken = within(*left, bytes);
                *left -= taken as u64;
                out.extend_from_slice(&bytes[..taken]);
                if *left == 0 {
                    self.state = State::Head(Vec::new());
                }
                Ok(taken)
            }
            State::ChunkSize(line) => {
                let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                    line.extend_from_slice(bytes);
                    check(line.len() <= CHUNK_LINE_BYTES_MAX, Refusal::Chunk)?;
                    return Ok(bytes.len());
                };
                line.extend_from_slice(&bytes[..=end]);
                let size = chunk_size(line)?;
                out.extend_from_slice(line);
                // Two more for the CR LF after the data.
                self.state = if size == 0 { State::Trailers(Vec::new()) } else { State::ChunkData(size + 2) };
                Ok(end + 1)
            }
            State::ChunkData(left) => {
                let taken = within(*left, bytes);
                for (byte, ahead) in bytes[..taken].iter().zip((1..=*left).rev().take(taken)) {
                    let fits = match ahead {
                        2 => *byte == b'\r',
                        1 => *byte == b'\n',
                        _ => true,
                    };
                    check(fits, Refusal::Chunk)?;
                }
                *left -= taken as u64;
                out.extend_from_slice(&bytes[..taken]);
                if *left == 0 {
                    self.state = State::ChunkSize(Vec::new());
                }
                Ok(taken)
            }
            State::Trailers(trailers) => {
                let trailers = mem::take(trailers);
                self.trailers(trailers, bytes, out)
            }
        }
    }

    fn head(&mut self, mut head: Vec<u8>, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Refusal> {
        // Empty lines before a request are allowed; they are dropped.
        if head.is_empty() && bytes[0] == b'\n' {
            return Err(Refusal::BareLineEnd);
        }
        // Usually a head arrives in one piece and need not be buffered.
        if head.is_empty()
            && bytes[0] != b'\r'
            && let Some(end) = end_of_head(bytes, 0)
        {
            self.whole_head(&bytes[..end], 0, out)?;
            return Ok(end);
        }
        let before = head.len();
        head.extend_from_slice(bytes);
        if head == b"\r" {
            self.state = State::Head(head);
            return Ok(bytes.len());
        }
        if head.starts_with(b"\r\n") {
            return Ok(2 - before);
        }
        let Some(end) = end_of_head(&head, before) else {
            line_ends(&head, before)?;
            check(head.len() <= self.limits.head_bytes_max, Refusal::TooLarge)?;
            self.state = State::Head(head);
            return Ok(bytes.len());
        };
        self.whole_head(&head[..end], before, out)?;
        Ok(end - before)
    }

    fn whole_head(&mut self, head: &[u8], scanned: usize, out: &mut Vec<u8>) -> Result<(), Refusal> {
        check(head.len() <= self.limits.head_bytes_max, Refusal::TooLarge)?;
        line_ends(head, scanned)?;
        self.state = framing(head, self.limits.headers_max)?;
        out.extend_from_slice(head);
        Ok(())
    }

    /// An error in a trailer counts as one in the body: no answer of its own is possible.
    fn trailers(&mut self, mut trailers: Vec<u8>, bytes: &[u8], out: &mut Vec<u8>) -> Result<usize, Refusal> {
        let before = trailers.len();
        trailers.extend_from_slice(bytes);
        let end = if trailers.starts_with(b"\r\n") { Some(2) } else { end_of_head(&trailers, before) };
        let read = end.unwrap_or(trailers.len());
        line_ends(&trailers[..read], before).map_err(|_| Refusal::Chunk)?;
        check(read <= self.limits.head_bytes_max, Refusal::Chunk)?;
        if end.is_none() {
            self.state = State::Trailers(trailers);
            return Ok(bytes.len());
        }
        out.extend_from_slice(&trailers[..read]);
        self.state = State::Head(Vec::new());
        Ok(read - before)
    }
}

fn check(holds: bool, refusal: Refusal) -> Result<(), Refusal> {
    if holds { Ok(()) } else { Err(refusal) }
}

fn within(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len())
}

/// The end of the empty line. Bytes scanned before are not scanned again.
fn end_of_head(head: &[u8], scanned: usize) -> Option<usize> {
    let from = scanned.saturating_sub(3);
    head[from..].windows(4).position(|four| four == b"\r\n\r\n").map(|at| from + at + 4)
}

/// Every line ends in CR LF, and neither occurs alone. A CR at the very end may still get its LF.
fn line_ends(head: &[u8], scanned: usize) -> Result<(), Refusal> {
    for (at, byte) in head.iter().enumerate().skip(scanned.saturating_sub(1)) {
        let fits = match byte {
            b'\n' => at > 0 && head[at - 1] == b'\r',
            b'\r' => head.get(at + 1).is_none_or(|next| *next == b'\n'),
            _ => true,
        };
        check(fits, Refusal::BareLineEnd)?;
    }
    Ok(())
}

/// What follows a head.
fn framing(head: &[u8], headers_max: usize) -> Result<State, Refusal> {
    let mut headers = [MaybeUninit::uninit(); HEADERS_MAX];
    let headers = &mut headers[..headers_max.min(HEADERS_MAX)];
    let mut request = httparse::Request::new(&mut []);
    let version = match request.parse_with_uninit_headers(head, headers) {
        Ok(httparse::Status::Complete(len)) if len == head.len() => request.version,
        Err(httparse::Error::TooManyHeaders) => return Err(Refusal::TooLarge),
        _ => return Err(Refusal::Malformed),
    };
    let (mut length, mut chunked) = (None, false);
    for header in request.headers.iter() {
        if is_like(header.name, "content-length") {
            check(length.is_none() && !header.name.contains('_'), Refusal::ContentLength)?;
            length = Some(plain_number(header.value).ok_or(Refusal::ContentLength)?);
        }
        if is_like(header.name, "transfer-encoding") {
            let plain = header.value.trim_ascii().eq_ignore_ascii_case(b"chunked");
            let allowed = plain && !chunked && version == Some(1) && !header.name.contains('_');
            check(allowed, Refusal::TransferEncoding)?;
            chunked = true;
        }
    }
    match (length, chunked) {
        (Some(_), true) => Err(Refusal::TwoFramings),
        (None, true) => Ok(State::ChunkSize(Vec::new())),
        (None | Some(0), false) => Ok(State::Head(Vec::new())),
        (Some(length), false) => Ok(State::Length(length)),
    }
}

/// Some servers read an underscore as a hyphen, so such a name counts as the header itself.
fn is_like(name: &str, wanted: &str) -> bool {
    let alike = |(a, b): (u8, u8)| a.eq_ignore_ascii_case(&b) || (a == b'_' && b == b'-');
    name.len() == wanted.len() && name.bytes().zip(wanted.bytes()).all(alike)
}

fn plain_number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    // hyper uses the two largest numbers internally for "chunked" and "until close".
    plain.then(|| std::str::from_utf8(digits).ok()?.parse().ok()).flatten().filter(|n| *n < u64::MAX - 2)
}

/// `1f` or `1f;name=value`, and CR LF.
fn chunk_size(line: &[u8]) -> Result<u64, Refusal> {
    check(line.len() <= CHUNK_LINE_BYTES_MAX, Refusal::Chunk)?;
    let line = line.strip_suffix(b"\r\n").ok_or(Refusal::Chunk)?;
    let (digits, extension) = match line.iter().position(|byte| *byte == b';') {
        Some(at) => line.split_at(at),
        None => (line, &line[..0]),
    };
    let plain = !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_hexdigit);
    let clean = extension.iter().all(|byte| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f));
    check(plain && clean, Refusal::Chunk)?;
    let digits = std::str::from_utf8(digits).map_err(|_| Refusal::Chunk)?;
    u64::from_str_radix(digits, 16).map_err(|_| Refusal::Chunk)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes_max: 200, headers_max: 4 };

    /// The result, which must be the same for any split into pieces.
    fn read(sent: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut verdicts = Vec::new();
        for piece in [sent.len(), 1, 2, 3, 7] {
            let (mut inspector, mut out, mut verdict) = (Inspector::new(LIMITS), Vec::new(), Ok(()));
            for piece in sent.chunks(piece.max(1)) {
                verdict = verdict.and_then(|()| inspector.feed(piece, &mut out));
            }
            verdicts.push(verdict.map(|()| out));
        }
        assert!(verdicts.windows(2).all(|two| two[0] == two[1]), "{verdicts:?}");
        verdicts.remove(0)
    }

    #[test]
    fn what_is_clear_passes_untouched_in_any_pieces() {
        for sent in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nX-Sum: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n\r\n\n\nGET / HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(read(sent.as_bytes()).as_deref(), Ok(sent.as_bytes()), "{sent:?}");
        }
        assert_eq!(read(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n").unwrap(), b"GET / HTTP/1.1\r\n\r\n");
    }

    #[test]
    fn what_two_readers_could_read_in_two_ways_is_refused() {
        use Refusal::{BareLineEnd, Chunk, ContentLength, Malformed, TransferEncoding, TwoFramings};
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        for (sent, refusal) in [
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", TwoFramings),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", TwoFramings),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nContent-Length: 0x1\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nContent-Length:\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nContent_Length: 1\r\n\r\n", ContentLength),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n", TransferEncoding),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                TransferEncoding,
            ),
            ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", TransferEncoding),
            ("POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\r\nX: a\r\n b\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", Malformed),
            ("GET / HTTP/1.1\nHost: a\n\n", BareLineEnd),
            ("GET / HTTP/1.1\r\nX: a\nY: b\r\n\r\n", BareLineEnd),
            ("GET / HTTP/1.1\r\nX: a\rY: b\r\n\r\n", BareLineEnd),
            ("\nGET / HTTP/1.1\r\n\r\n", BareLineEnd),
            ("GET /\r\n\r\n", Malformed),
            ("GET / HTTP/2.0\r\n\r\n", Malformed),
            (" GET / HTTP/1.1\r\n\r\n", Malformed),
            ("\0\r\n\r\n", Malformed),
            (&format!("{chunked}x\r\n"), Chunk),
            (&format!("{chunked}5 \r\nhello\r\n"), Chunk),
            (&format!("{chunked}5\nhello\r\n"), Chunk),
            (&format!("{chunked}-5\r\n"), Chunk),
            (&format!("{chunked}\r\n"), Chunk),
            (&format!("{chunked}5\r\nhelloX\r\n"), Chunk),
            (&format!("{chunked}5\r\nhello\n0\r\n\r\n"), Chunk),
            (&format!("{chunked}fffffffffffffffff\r\n"), Chunk),
            (&format!("{chunked}0;a=\u{1}\r\n\r\n"), Chunk),
            (&format!("{chunked}0\r\nX: 1\n\r\n"), Chunk),
        ] {
            assert_eq!(read(sent.as_bytes()), Err(refusal), "{sent:?}");
        }
    }

    #[test]
    fn heads_are_bounded_in_bytes_and_in_headers() {
        let head = |bytes: usize| {
            let start = "GET / HTTP/1.1\r\nX: ";
            format!("{start}{}\r\n\r\n", "x".repeat(bytes - start.len() - 4))
        };
        assert!(read(head(200).as_bytes()).is_ok());
        assert_eq!(read(head(201).as_bytes()), Err(Refusal::TooLarge));
        assert_eq!(read("x".repeat(201).as_bytes()), Err(Refusal::TooLarge));
        let headers = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(count));
        assert!(read(headers(4).as_bytes()).is_ok());
        assert_eq!(read(headers(5).as_bytes()), Err(Refusal::TooLarge));
        let line = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;{}", "x".repeat(300));
        assert_eq!(read(line.as_bytes()), Err(Refusal::Chunk));
    }
}
