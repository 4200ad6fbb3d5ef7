//! The claim of an HTTP request, in the handler's own transaction.

use bytes::Bytes;
use http::Response;
use rusqlite::Connection;

use super::ready;
use crate::http::ClaimHandle;
use crate::tx::TxError;

/// [`ClaimHandle::once_tx`].
pub fn once_tx<B: Into<Bytes>, E>(
    claim: &ClaimHandle,
    mut tx: &Connection,
    work: impl FnOnce(&Connection) -> Result<Response<B>, E>,
) -> Result<Response<Bytes>, TxError<E>> {
    ready(claim.once_tx(&mut tx, async |tx| work(tx)))
}
