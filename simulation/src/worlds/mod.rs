//! The worlds. Each has the real code in the middle and simulated ends.

pub mod client;
pub mod consumer;
pub mod guard;
pub mod relay;
pub mod saga;

/// The names of all worlds.
pub const NAMES: &[&str] = &["guard", "client", "relay", "consumer", "saga"];

/// Calls `$f::<W>($args…)` for the world of that name; `None` if there is none.
#[macro_export]
macro_rules! with_world {
    ($name:expr, $f:ident ( $($args:expr),* $(,)? )) => {
        match $name {
            "guard" => Some($f::<$crate::worlds::guard::GuardWorld>($($args),*)),
            "client" => Some($f::<$crate::worlds::client::ClientWorld>($($args),*)),
            "relay" => Some($f::<$crate::worlds::relay::RelayWorld>($($args),*)),
            "consumer" => Some($f::<$crate::worlds::consumer::ConsumerWorld>($($args),*)),
            "saga" => Some($f::<$crate::worlds::saga::SagaWorld>($($args),*)),
            _ => None,
        }
    };
}
