//! Preparing the admin key before a node serves (docs/api.md 10.2): it is supplied by the configuration, or made at the
//! first start and written to a file that only its owner can read. It is never logged.
//!
//! A crash between the commit and the file must not lose a key whose digest the database knows. So the secret is first
//! written to a file beside it (`<file>.new`), and a start after a crash finds it there and publishes it.

use crate::config::{AdminAuth, AdminKey, Config};
use crate::secret::{Kind, constant_time_eq, digest};
use coordinator::accounts::{Accounts, Digest};
use secrecy::{ExposeSecret, SecretString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The admin key could not be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The key's file, and what to do about it.
    #[error("{0}")]
    File(String),
    /// The database.
    #[error("cannot store the admin key: {0}")]
    Database(#[from] coordinator::Error),
    /// The operating system gives no random bytes.
    #[error("the operating system gives no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

/// Makes sure that the admin key which the configuration asks for exists.
///
/// # Errors
/// See [`Error`].
pub(crate) async fn prepare(config: &Config, accounts: &Accounts) -> Result<(), Error> {
    match config.admin_auth {
        AdminAuth::Disabled => {
            tracing::warn!(
                admin.addr = %config.admin_addr,
                "ADMIN AUTHENTICATION IS OFF: whoever reaches the admin port rules this server \
                 (--dangerously-disable-admin-auth)"
            );
            return Ok(());
        }
        AdminAuth::Required => {}
    }
    let file = KeyFile { path: config.admin_key_file.clone() };
    match &config.admin_key {
        AdminKey::Supplied(secret) => {
            let supplied = digest(secret.expose_secret());
            match accounts.admin_key().await? {
                Some(current) if constant_time_eq(&current, &supplied) => Ok(()),
                Some(_) | None => Ok(accounts.replace_admin_key(supplied).await?),
            }
        }
        AdminKey::Rotated => rotate(accounts, &file).await,
        AdminKey::Made => match accounts.admin_key().await? {
            Some(current) => file.recover(&current),
            None => make_first(accounts, &file).await,
        },
    }
}

async fn rotate(accounts: &Accounts, file: &KeyFile) -> Result<(), Error> {
    let secret = Kind::Admin.generate()?;
    file.write_pending(&secret)?;
    accounts.replace_admin_key(digest(secret.expose_secret())).await?;
    file.publish(&secret)?;
    tracing::info!(file = %file.path.display(), "the admin key was replaced; the new one is in the file");
    Ok(())
}

async fn make_first(accounts: &Accounts, file: &KeyFile) -> Result<(), Error> {
    // A key that is in the file already, perhaps of a database that was removed, stays valid.
    if let Some(secret) = file.read()? {
        if accounts.set_first_admin_key(digest(secret.expose_secret())).await? {
            tracing::info!(file = %file.path.display(), "the admin key is the one in the file");
        }
        return Ok(());
    }
    let secret = Kind::Admin.generate()?;
    file.write_pending(&secret)?;
    if accounts.set_first_admin_key(digest(secret.expose_secret())).await? {
        file.publish(&secret)?;
        tracing::info!(file = %file.path.display(), "an admin key was made; it is in the file");
    } else {
        file.drop_pending();
        tracing::info!("another node has made the admin key");
    }
    Ok(())
}

struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    fn pending(&self) -> PathBuf {
        self.beside(".new")
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    /// The key in the file, if there is a file.
    fn read(&self) -> Result<Option<SecretString>, Error> {
        let Some(secret) = read_secret(&self.path).map_err(|error| self.refuse("read", &error))? else {
            return Ok(None);
        };
        if !Kind::Admin.matches(secret.expose_secret()) {
            return Err(Error::File(format!(
                "{} does not hold an admin key; move it away, or point BAE_ADMIN_KEY_FILE elsewhere",
                self.path.display()
            )));
        }
        Ok(Some(secret))
    }

    fn write_pending(&self, secret: &SecretString) -> Result<(), Error> {
        write_secret(&self.pending(), secret).map_err(|error| self.refuse("write", &error))
    }

    fn drop_pending(&self) {
        if let Err(error) = fs::remove_file(self.pending())
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(error = %error, "a left-over key file was not removed");
        }
    }

    /// Puts the key where the administrator looks for it, in one step.
    fn publish(&self, secret: &SecretString) -> Result<(), Error> {
        // The name holds the process id, because several nodes may share the folder.
        let own = self.beside(&format!(".{}", std::process::id()));
        write_secret(&own, secret)
            .and_then(|()| fs::rename(&own, &self.path))
            .map_err(|error| self.refuse("write", &error))?;
        self.drop_pending();
        Ok(())
    }

    /// Finishes what a crash cut off: publishes the pending key if it is the current one.
    fn recover(&self, current: &Digest) -> Result<(), Error> {
        let pending = read_secret(&self.pending()).map_err(|error| self.refuse("read", &error))?;
        let Some(secret) = pending else { return Ok(()) };
        if constant_time_eq(&digest(secret.expose_secret()), current) {
            self.publish(&secret)?;
            tracing::info!(file = %self.path.display(), "the admin key is in the file");
        } else {
            self.drop_pending();
        }
        Ok(())
    }

    fn refuse(&self, what: &str, error: &io::Error) -> Error {
        Error::File(format!(
            "cannot {what} the admin key file {}: {error}; make its folder writable, or set BAE_ADMIN_KEY_FILE",
            self.path.display()
        ))
    }
}

/// Reads a secret from a file, if there is one.
///
/// # Errors
/// When there is one that cannot be read.
pub(crate) fn read_secret(path: &Path) -> io::Result<Option<SecretString>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a secret into a file that only its owner reads, and waits until it is on the disk.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_secret(path: &Path, secret: &SecretString) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    // The mode given on opening applies only to a new file.
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    writeln!(file, "{}", secret.expose_secret())?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
