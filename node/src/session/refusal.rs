//! Refusals that both the sessions and the handlers of the ports give, so that clients read the same text wherever one is given.

/// What is said wherever a sandbox is wanted, because this version has no driver for them.
pub(crate) const NO_SANDBOX_DRIVER: &str = "no sandbox driver is configured";
