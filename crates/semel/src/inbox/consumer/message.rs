//! A message with its identity.

use std::sync::Arc;

use crate::inbox::Identity;
use crate::sink::headers;
use crate::source::Delivery;

/// A message: its identity and its delivery. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Message {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    identity: Identity,
    delivery: Delivery,
}

impl Message {
    /// A delivery with its identity.
    pub fn new(identity: Identity, delivery: Delivery) -> Self {
        Self { inner: Arc::new(Inner { identity, delivery }) }
    }

    /// Which message this is.
    pub fn identity(&self) -> &Identity {
        &self.inner.identity
    }

    /// As the broker delivered it.
    pub fn delivery(&self) -> &Delivery {
        &self.inner.delivery
    }

    /// Its payload.
    pub fn payload(&self) -> &[u8] {
        &self.inner.delivery.payload
    }

    /// The event type, if the producer set it in a header as semel's relay or CloudEvents do.
    pub fn kind(&self) -> Option<&str> {
        [headers::KIND, "ce_type", "ce-type"].iter().find_map(|name| self.inner.delivery.header(name))
    }

    /// The trace context it was published under.
    pub fn trace_parent(&self) -> Option<&str> {
        self.inner.delivery.header(headers::TRACE_PARENT)
    }
}

impl AsRef<Identity> for Message {
    fn as_ref(&self) -> &Identity {
        self.identity()
    }
}
