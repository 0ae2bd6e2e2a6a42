//! The text that `baesrv dev` prints when it is ready: addresses, keys, and commands to paste.

use super::{ADDR, DATA};
use crate::cli::terminal::Failure;
use crate::config::{AdminKey, SandboxDriver};
use crate::lifecycle::Ports;
use secrecy::{ExposeSecret, SecretString};
use std::net::SocketAddr;
use std::path::Path;

/// The addresses at which the two ports can be reached.
pub(super) struct Addresses {
    pub(crate) client: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Addresses {
    pub(crate) fn of(ports: &Ports) -> Result<Self, Failure> {
        let refuse = |error| Failure::Runtime(format!("cannot tell a port's address: {error}"));
        Ok(Self {
            client: reachable(ports.client.local_addr().map_err(refuse)?),
            admin: reachable(ports.admin.local_addr().map_err(refuse)?),
        })
    }
}

/// The address at which this machine can call: loopback if the port is bound to all addresses.
fn reachable(mut addr: SocketAddr) -> SocketAddr {
    if addr.ip().is_unspecified() {
        addr.set_ip([127, 0, 0, 1].into());
    }
    addr
}

/// What the text is made of.
pub(super) struct Banner<'a> {
    pub(crate) addresses: Addresses,
    pub(crate) data: &'a Path,
    pub(crate) admin_key: &'a AdminKey,
    /// The vendor's model; none for the demo model.
    pub(crate) model: Option<&'a str>,
    /// Where sandboxes run, and the images that the profile allows.
    pub(crate) sandbox: &'a SandboxDriver,
    pub(crate) images: &'a [String],
    pub(crate) client_key: &'a SecretString,
    pub(crate) program: &'a str,
}

impl Banner<'_> {
    pub(crate) fn text(&self) -> String {
        let Banner { addresses, data, admin_key, model, sandbox, images, client_key, program } = self;
        let url = format!("http://{}", addresses.client);
        let admin = format!("http://{}", addresses.admin);
        let key = client_key.expose_secret();
        let data = data.display();
        let model = match model {
            Some(model) => (*model).to_owned(),
            None => "demo, built in (set ANTHROPIC_API_KEY or OPENAI_API_KEY for a real one)".to_owned(),
        };
        let sandboxes = match (sandbox, images.first()) {
            (SandboxDriver::None, _) => "none (install Docker, or point DOCKER_HOST at a daemon)".to_owned(),
            (_, None) => "there is a driver, and no image; name one with --image".to_owned(),
            (SandboxDriver::Docker { .. }, Some(image)) => format!("docker (in chat: /sandbox {image})"),
            (SandboxDriver::Kubernetes { .. }, Some(image)) => format!("kubernetes (in chat: /sandbox {image})"),
        };
        let admin_key = match admin_key {
            AdminKey::Supplied(_) => "BAE_ADMIN_KEY".to_owned(),
            AdminKey::Made | AdminKey::Rotated => format!("{data}/admin.key"),
        };
        let usual = addresses.client.to_string() == ADDR && data.to_string() == DATA;
        let chat = if usual { format!("{program} chat") } else { format!("{program} chat --url {url} --key {key}") };
        let curl = curl(&url, key);
        format!(
            "baesrv dev is ready\n\n  \
         client API  {url}\n  \
         admin API   {admin}  (key in {admin_key})\n  \
         client key  {key}  (also in {data}/client.key)\n  \
         model       {model}\n  \
         sandboxes   {sandboxes}\n\n\
         Talk to it in another terminal:\n\n  {chat}\n\n\
         Or with curl, a session and a turn in one line:\n\n  {curl}\n\n\
         Ctrl-C stops it; the next start goes on where this one ended.\n"
        )
    }
}

/// A shell command that creates a session, registers as its driver and sends a message.
fn curl(url: &str, key: &str) -> String {
    let register = r#"{"jsonrpc":"2.0","id":1,"method":"session.registerDriver"}"#;
    let send = concat!(
        r#"{"jsonrpc":"2.0","id":2,"method":"session.sendMessage","#,
        r#""params":{"message":{"role":"user","content":"Hello"}}}"#
    );
    format!(
        "set -- $(curl -s {url}/api/v1/sessions -H 'authorization: Bearer {key}' -H 'content-type: application/json' \
         -d '{{}}' | grep -oE '(bae_)?ses_[0-9a-f]+'); for m in '{register}' '{send}'; do \
         curl -sN {url}/api/v1/sessions/$1/rpc -H \"authorization: Bearer $2\" -d \"$m\"; done"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn banner<'a>(client: &str, data: &'a str, model: Option<&'a str>, client_key: &'a SecretString) -> String {
        let addresses =
            Addresses { client: reachable(client.parse().unwrap()), admin: "127.0.0.1:8081".parse().unwrap() };
        let data = Path::new(data);
        let (sandbox, images) = (&SandboxDriver::Docker { host: String::new() }, &["box:1".to_owned()]);
        let admin_key = &AdminKey::Made;
        Banner { addresses, data, admin_key, model, sandbox, images, client_key, program: "baesrv" }.text()
    }

    #[test]
    fn the_lines_fit_where_it_runs() {
        let key = "bae_1234".to_owned().into();
        let usual = banner(ADDR, DATA, None, &key);
        assert!(usual.contains("\n  baesrv chat\n") && usual.contains("demo, built in"), "{usual}");
        let other = banner("0.0.0.0:9000", "/data", Some("m"), &key);
        for part in [
            "client API  http://127.0.0.1:9000\n",
            "(key in /data/admin.key)",
            "model       m\n",
            "\n  baesrv chat --url http://127.0.0.1:9000 --key bae_1234\n",
            "curl -s http://127.0.0.1:9000/api/v1/sessions -H 'authorization: Bearer bae_1234'",
        ] {
            assert!(other.contains(part), "{part} in {other}");
        }
    }
}
