//! Something that sits between a client and the server and speaks their protocol: as a pooler does when the server
//! dies in the middle of a statement, or a server that stops to answer at one statement and no other.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Messages of the client.
pub(crate) const PARSE: u8 = b'P';
pub(crate) const BIND: u8 = b'B';
pub(crate) const QUERY: u8 = b'Q';
const SYNC: u8 = b'S';

/// What becomes of a message.
#[derive(Clone, Copy)]
pub(crate) enum Act {
    /// The server does not get it; the client is answered this SQLSTATE.
    Refuse(&'static str),
    /// The server does not get it, and the client no answer.
    Swallow,
    /// Both connections end.
    Cut,
}

type Rule = Option<(u8, &'static str, Act)>;

/// One that passes everything on, but for what its rule looks for. Ends with the runtime.
pub(crate) struct Between {
    pub(crate) addr: SocketAddr,
    rule: Arc<Mutex<Rule>>,
}

impl Between {
    pub(crate) async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let rule: Arc<Mutex<Rule>> = Arc::default();
        let of_all = Arc::clone(&rule);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(&server).await else { continue };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let to_client = Arc::new(tokio::sync::Mutex::new(to_client));
                let back = tokio::spawn(answers(from_server, Arc::clone(&to_client)));
                let rule = Arc::clone(&of_all);
                tokio::spawn(async move {
                    let _ = requests(from_client, to_server, &to_client, &rule).await;
                    back.abort();
                });
            }
        });
        Self { addr, rule }
    }

    /// From now on, until the rule changes: the first message of this type with this text in it, and all like it.
    pub(crate) fn at(&self, message: u8, text: &'static str, act: Act) {
        *self.rule.lock().unwrap() = Some((message, text, act));
    }

    pub(crate) fn pass(&self) {
        *self.rule.lock().unwrap() = None;
    }
}

async fn answers(mut server: OwnedReadHalf, client: Arc<tokio::sync::Mutex<OwnedWriteHalf>>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(read @ 1..) = server.read(&mut bytes).await {
        if client.lock().await.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    back: &tokio::sync::Mutex<OwnedWriteHalf>,
    rule: &Mutex<Rule>,
) -> std::io::Result<()> {
    // The first message has no type.
    let mut first = true;
    let mut refusing = None;
    loop {
        let mut message = Vec::new();
        if !first {
            message.push(client.read_u8().await?);
        }
        let length = client.read_u32().await?;
        message.extend(length.to_be_bytes());
        let body = message.len();
        message.resize(body + length as usize - 4, 0);
        client.read_exact(&mut message[body..]).await?;
        let kind = if std::mem::take(&mut first) { 0 } else { message[0] };
        if let Some(state) = refusing {
            // Whatever follows is of the same request, until it says so.
            if kind == SYNC {
                back.lock().await.write_all(&refusal(state)).await?;
                refusing = None;
            }
            continue;
        }
        let matched = rule.lock().unwrap().filter(|(wanted, text, _)| {
            kind == *wanted && String::from_utf8_lossy(&message[body..]).contains(text)
        });
        match matched {
            None => server.write_all(&message).await?,
            Some((.., Act::Swallow)) => {}
            Some((.., Act::Cut)) => return back.lock().await.shutdown().await,
            Some((.., Act::Refuse(state))) if kind == QUERY => {
                back.lock().await.write_all(&refusal(state)).await?;
            }
            Some((.., Act::Refuse(state))) => refusing = Some(state),
        }
    }
}

/// ErrorResponse and ReadyForQuery.
fn refusal(state: &str) -> Vec<u8> {
    let fields = format!("SERROR\0VERROR\0C{state}\0Mrefused on purpose\0\0");
    let mut bytes = vec![b'E'];
    bytes.extend((fields.len() as u32 + 4).to_be_bytes());
    bytes.extend(fields.as_bytes());
    bytes.extend(*b"Z\0\0\0\x05I");
    bytes
}
