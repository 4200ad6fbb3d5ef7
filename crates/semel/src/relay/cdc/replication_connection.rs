//! A replication connection: frames in, frames out. Every call may be cancelled at any byte: received bytes stay in
//! `input`, unsent bytes stay in `output`.

use std::time::{Duration, SystemTime};

use bytes::{BufMut, Bytes, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::error::CdcError;
use super::lsn::Lsn;
use super::pgoutput::Input;
use crate::store::postgres::connect::Duplex;
use crate::timeout::bounded;

/// Bytes reserved for one read.
const READ_BYTES: usize = 256 * 1024;
/// The longest message that PostgreSQL sends.
const FRAME_BYTES_MAX: usize = 1 << 30;
/// PostgreSQL's epoch, after the Unix epoch: 1 January 2000.
const EPOCH: Duration = Duration::from_secs(946_684_800);

pub(super) struct ReplicationConnection {
    socket: Box<dyn Duplex>,
    input: BytesMut,
    output: BytesMut,
}

/// A message from the server.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) tag: u8,
    pub(super) body: Bytes,
}

impl ReplicationConnection {
    pub(super) fn new(socket: Box<dyn Duplex>) -> Self {
        Self { socket, input: BytesMut::new(), output: BytesMut::new() }
    }

    /// The next message received completely. An error message of the server becomes an error.
    pub(super) fn frame(&mut self) -> Result<Option<Frame>, CdcError> {
        loop {
            let Some(frame) = split(&mut self.input)? else { return Ok(None) };
            match frame.tag {
                b'E' => return Err(server_error(frame.body)),
                // Notices, and changed settings.
                b'N' | b'S' => {}
                _ => return Ok(Some(frame)),
            }
        }
    }

    /// Reads what is available, or waits for it.
    pub(super) async fn fill(&mut self) -> Result<(), CdcError> {
        self.input.reserve(READ_BYTES);
        match self.socket.read_buf(&mut self.input).await? {
            0 => Err(CdcError::Io(std::io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    pub(super) async fn receive(&mut self) -> Result<Frame, CdcError> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Appends to the unsent bytes.
    pub(super) fn put(
        &mut self,
        write: impl FnOnce(&mut BytesMut) -> std::io::Result<()>,
    ) -> Result<(), CdcError> {
        Ok(write(&mut self.output)?)
    }

    /// Sends the unsent bytes.
    pub(super) async fn flush(&mut self) -> Result<(), CdcError> {
        while !self.output.is_empty() {
            if self.socket.write_buf(&mut self.output).await? == 0 {
                return Err(CdcError::Io(std::io::ErrorKind::WriteZero.into()));
            }
        }
        Ok(self.socket.flush().await?)
    }

    /// Runs a command, and returns its rows.
    pub(super) async fn command(&mut self, text: &str) -> Result<Vec<Vec<Option<String>>>, CdcError> {
        self.put(|output| frontend::query(text, output))?;
        self.flush().await?;
        let (mut rows, mut error) = (Vec::new(), None);
        loop {
            match self.receive().await {
                Ok(Frame { tag: b'D', body }) => rows.push(row(body)?),
                Ok(Frame { tag: b'Z', .. }) => return error.map_or(Ok(rows), Err),
                Ok(_) => {}
                Err(refused @ CdcError::Server { .. }) => error = Some(refused),
                Err(broken) => return Err(broken),
            }
        }
    }

    /// Starts the stream.
    pub(super) async fn start(&mut self, text: &str, timeout: Duration) -> Result<(), CdcError> {
        self.put(|output| frontend::query(text, output))?;
        let answered = async {
            self.flush().await?;
            self.receive().await
        };
        match bounded(timeout, answered, || CdcError::TimedOut(timeout)).await? {
            // CopyBothResponse.
            Frame { tag: b'W', .. } => Ok(()),
            Frame { tag, .. } => {
                Err(CdcError::Malformed(format!("START_REPLICATION was answered with {:?}", char::from(tag))))
            }
        }
    }

    /// Status message: acks everything up to this LSN, so the server may discard it.
    pub(super) fn put_status(&mut self, done: Lsn) -> Result<(), CdcError> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + EPOCH).unwrap_or_default();
        let mut body = Vec::with_capacity(34);
        body.put_u8(b'r');
        // Received, flushed, applied: always the same. If we reported more as received, the server would stop reporting
        // its progress while it has nothing for us.
        for _ in 0..3 {
            body.put_u64(done.0);
        }
        body.put_u64(u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
        body.put_u8(0);
        self.put(|output| {
            frontend::CopyData::new(&body[..])?.write(output);
            Ok(())
        })
    }

    /// Closes cleanly, so that the server gets the last status.
    pub(super) async fn close(mut self) {
        frontend::copy_done(&mut self.output);
        frontend::terminate(&mut self.output);
        let ended = async {
            self.flush().await?;
            while self.socket.read_buf(&mut self.input).await? > 0 {
                self.input.clear();
            }
            Ok::<_, CdcError>(())
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), ended).await;
    }
}

fn split(input: &mut BytesMut) -> Result<Option<Frame>, CdcError> {
    let Some(header) = input.get(..5) else { return Ok(None) };
    let length = <[u8; 4]>::try_from(&header[1..5]).map_or(0, u32::from_be_bytes);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if !(4..=FRAME_BYTES_MAX).contains(&length) {
        return Err(CdcError::Malformed(format!("a message has an invalid length of {length} bytes")));
    }
    if input.len() <= length {
        return Ok(None);
    }
    let mut frame = input.split_to(length + 1).freeze();
    let tag = frame.split_to(5)[0];
    Ok(Some(Frame { tag, body: frame }))
}

/// Reads an ErrorResponse: pairs of a letter and a text.
fn server_error(body: Bytes) -> CdcError {
    let mut input = Input(body);
    let (mut state, mut message) = (String::new(), String::new());
    while let Ok(kind @ 1..) = input.byte() {
        let Ok(text) = input.text() else { break };
        match kind {
            b'C' => state = text,
            b'M' => message = text,
            b'D' | b'H' => message = format!("{message}; {text}"),
            _ => {}
        }
    }
    CdcError::Server { state, message }
}

fn row(body: Bytes) -> Result<Vec<Option<String>>, CdcError> {
    let mut input = Input(body);
    let mut row = Vec::new();
    for _ in 0..input.count()? {
        let length = input.u32()?;
        row.push(match usize::try_from(length) {
            Ok(length) if length < FRAME_BYTES_MAX => {
                Some(String::from_utf8_lossy(&input.take(length)?).into_owned())
            }
            // Minus one: null.
            _ => None,
        });
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_come_whole_however_the_bytes_do() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut connection = ReplicationConnection::new(Box::new(ours));
        let bytes =
            [&b"dabc"[..0], &[b'd', 0, 0, 0, 7, 1, 2, 3, b'N', 0, 0, 0, 4, b'c', 0, 0, 0, 4]].concat();
        let sent = tokio::spawn(async move {
            for byte in bytes {
                theirs.write_all(&[byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            theirs
        });
        let first = connection.receive().await.unwrap();
        assert_eq!((first.tag, &first.body[..]), (b'd', &[1_u8, 2, 3][..]));
        let second = connection.receive().await.unwrap();
        assert_eq!((second.tag, second.body.len()), (b'c', 0));
        drop(sent.await.unwrap());
        assert!(matches!(connection.receive().await, Err(CdcError::Io(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_answers_is_not_waited_for_without_end() {
        let (ours, _theirs) = tokio::io::duplex(1 << 10);
        let mut connection = ReplicationConnection::new(Box::new(ours));
        let timeout = Duration::from_secs(5);
        assert!(matches!(connection.start("START_REPLICATION", timeout).await, Err(CdcError::TimedOut(_))));
    }

    #[test]
    fn an_error_is_read_and_a_wrong_length_refused() {
        let mut input = BytesMut::from(&b"E\0\0\0\x14SERROR\0C55006\0Mno\0\0"[..]);
        input[4] = u8::try_from(input.len() - 1).unwrap();
        let frame = split(&mut input).unwrap().unwrap();
        assert!(server_error(frame.body).is_slot_in_use());
        for length in [[0, 0, 0, 3], [0xff; 4]] {
            let mut input = BytesMut::from(&[&b"d"[..], &length, &[0; 20]].concat()[..]);
            assert!(matches!(split(&mut input), Err(CdcError::Malformed(_))));
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(frame)) = split(&mut input) {
                let _ = server_error(frame.body.clone());
                let _ = row(frame.body);
            }
        }
    }
}
