//! Tests of how the admin key comes about: it is made at the first start, kept, given by a setting, or rotated, and its
//! file is never overwritten by accident.

use super::*;
use crate::config::Flags;
use coordinator::Db;
use std::collections::BTreeMap;
use std::sync::Arc;

struct Place {
    dir: PathBuf,
    accounts: Accounts,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Place {
    async fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("bae-admin-key-{}", uuid::Uuid::now_v7().simple()));
        let accounts = Accounts::new(Db::open(&dir.join("bae.db")).await.unwrap());
        Self { dir, accounts }
    }

    fn config(&self, flags: &Flags, supplied: Option<&str>) -> Config {
        let mut environment =
            BTreeMap::from([("BAE_DATABASE_URL", format!("sqlite:{}", self.dir.join("bae.db").display()))]);
        environment.extend(supplied.map(|key| ("BAE_ADMIN_KEY", key.to_owned())));
        Config::build(flags, Arc::new(environment), "").unwrap()
    }

    async fn start(&self, flags: &Flags, supplied: Option<&str>) -> Result<(), Error> {
        prepare(&self.config(flags, supplied), &self.accounts).await
    }

    fn file(&self) -> PathBuf {
        self.dir.join("admin.key")
    }

    /// The key in the file, which must be the one that opens.
    async fn key(&self) -> String {
        let text = fs::read_to_string(self.file()).unwrap();
        assert_eq!(fs::metadata(self.file()).unwrap().permissions().mode() & 0o777, 0o600);
        let key = text.trim().to_owned();
        assert!(Kind::Admin.matches(&key));
        assert!(self.opens(&key).await);
        assert_eq!(fs::read_dir(&self.dir).unwrap().filter(|e| name(e).starts_with("admin.key")).count(), 1);
        key
    }

    async fn opens(&self, key: &str) -> bool {
        self.accounts.admin_key().await.unwrap().is_some_and(|current| constant_time_eq(&current, &digest(key)))
    }
}

fn name(entry: &io::Result<fs::DirEntry>) -> String {
    entry.as_ref().unwrap().file_name().into_string().unwrap()
}

const SUPPLIED: &str = "bae_admin_0123456789abcdef0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn made_once_kept_and_rotated() {
    let place = Place::new().await;
    let rotate = Flags { rotate_admin_key: true, ..Flags::default() };
    place.start(&Flags::default(), None).await.unwrap();
    let first = place.key().await;
    place.start(&Flags::default(), None).await.unwrap();
    assert_eq!(place.key().await, first);
    place.start(&rotate, None).await.unwrap();
    assert_ne!(place.key().await, first);
    assert!(!place.opens(&first).await);
}

#[tokio::test]
async fn a_supplied_key_wins_and_is_not_written() {
    let place = Place::new().await;
    place.start(&Flags::default(), Some(SUPPLIED)).await.unwrap();
    assert!(place.opens(SUPPLIED).await && !place.file().exists());
    // Started again without the setting: the key in the database stays valid, and no other is made.
    place.start(&Flags::default(), None).await.unwrap();
    assert!(place.opens(SUPPLIED).await && !place.file().exists());
}

#[tokio::test]
async fn switched_off_nothing_is_made() {
    let place = Place::new().await;
    place.start(&Flags { disable_admin_auth: true, ..Flags::default() }, None).await.unwrap();
    assert_eq!(place.accounts.admin_key().await.unwrap(), None);
    assert!(!place.file().exists());
}

#[tokio::test]
async fn a_crash_between_commit_and_file_loses_nothing() {
    let place = Place::new().await;
    let secret = Kind::Admin.generate().unwrap();
    let file = KeyFile { path: place.file() };
    file.write_pending(&secret).unwrap();
    place.accounts.replace_admin_key(digest(secret.expose_secret())).await.unwrap();
    place.start(&Flags::default(), None).await.unwrap();
    assert_eq!(place.key().await, secret.expose_secret());

    // After a crash before the commit, the pending key is not valid, and its file is removed.
    file.write_pending(&Kind::Admin.generate().unwrap()).unwrap();
    place.start(&Flags::default(), None).await.unwrap();
    assert_eq!(place.key().await, secret.expose_secret());
}

#[tokio::test]
async fn a_key_file_that_is_there_is_used_or_refused_but_never_overwritten() {
    let place = Place::new().await;
    fs::write(place.file(), "my notes\n").unwrap();
    let error = place.start(&Flags::default(), None).await.unwrap_err().to_string();
    assert!(
        error.ends_with("does not hold an admin key; move it away, or point BAE_ADMIN_KEY_FILE elsewhere"),
        "{error}"
    );
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "my notes\n");
    assert_eq!(place.accounts.admin_key().await.unwrap(), None);

    fs::write(place.file(), format!("{SUPPLIED}\n")).unwrap();
    place.start(&Flags::default(), None).await.unwrap();
    assert!(place.opens(SUPPLIED).await);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() {
    let place = Place::new().await;
    fs::write(place.dir.join("plain"), "").unwrap();
    let mut config = place.config(&Flags::default(), None);
    config.admin_key_file = place.dir.join("plain/admin.key");
    let error = prepare(&config, &place.accounts).await.unwrap_err().to_string();
    assert!(error.contains("make its folder writable, or set BAE_ADMIN_KEY_FILE"), "{error}");
    assert_eq!(place.accounts.admin_key().await.unwrap(), None, "no key that nobody knows");
}
