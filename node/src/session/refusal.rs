//! Refusals that both the sessions and the handlers of the ports give, so that clients read the same text wherever one is given.

use engine::rpc::RpcError;

/// What is said wherever a sandbox is wanted, because this version has no driver for them.
pub(crate) const NO_SANDBOX_DRIVER: &str = "no sandbox driver is configured";

/// `-32602`: an idempotency key was used again with other params.
pub(crate) fn other_params() -> RpcError {
    RpcError::invalid_params("idempotency_key was used before with other params; use a new key for a new message")
}
