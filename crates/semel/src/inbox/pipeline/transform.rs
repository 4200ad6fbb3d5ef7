//! The transform: makes outputs of inputs.

use std::future::Future;

use super::message::{Input, Output};
use crate::inbox::consumer::HandlerError;

/// Makes outputs of a batch of inputs. A function is enough:
///
/// ```
/// use semel::inbox::consumer::HandlerError;
/// use semel::inbox::pipeline::{Input, Output, Transform};
///
/// fn is_a_transform<T: Transform>(_: T) {}
/// is_a_transform(async |inputs: Vec<Input>| {
///     let all = inputs.iter().map(|input| Output::like(input, "copies"));
///     Ok::<_, HandlerError>(all.collect::<Vec<_>>())
/// });
/// ```
///
/// It may be called again with the same messages, alone or with others, any number of times: only what it *returns*
/// happens exactly once. Any other effect, such as a row in a database, needs the [inbox](crate::inbox::Inbox).
pub trait Transform: Send + Sync + 'static {
    /// Returns the outputs of these messages, which are in the order of their partitions. Outputs are published in the
    /// order returned.
    fn transform(&self, inputs: Vec<Input>)
    -> impl Future<Output = Result<Vec<Output>, HandlerError>> + Send;
}

impl<F, R> Transform for F
where
    F: Fn(Vec<Input>) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Vec<Output>, HandlerError>> + Send,
{
    fn transform(
        &self,
        inputs: Vec<Input>,
    ) -> impl Future<Output = Result<Vec<Output>, HandlerError>> + Send {
        self(inputs)
    }
}
