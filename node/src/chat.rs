//! `baesrv chat`.

/// Flags of `chat`.
#[derive(clap::Args)]
pub struct Args {}

/// Runs the client.
pub async fn run(_args: Args) -> anyhow::Result<()> {
    anyhow::bail!("no chat client")
}
