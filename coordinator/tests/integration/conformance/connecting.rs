//! Postgres alone: connecting, and having the database for oneself.

use crate::fixture::{Fixture, until};
use coordinator::{Db, Error, PostgresSettings};
use tests::services;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_alone_claims_the_database() {
    let fixture = Fixture::postgres().await;
    fixture.db.lock_single_node().await.unwrap();
    let settings = PostgresSettings::new(format!("{}/{}", services::postgres(), fixture.name()).into());
    let second = Db::connect(&settings).await.unwrap();
    let refused = second.lock_single_node().await.unwrap_err().to_string();
    assert!(refused.contains("another node uses this Postgres database"), "{refused}");
    fixture.db.close().await;
    until("the claim is free", async || second.lock_single_node().await).await;
    second.close().await;
    fixture.end().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_url_is_told_without_its_password() {
    let port = 1;
    for (url, told) in [
        ("postgres://bae:hunter2@127.0.0.1:notaport/x".to_owned(), "not of the form"),
        (format!("postgres://bae:hunter2@127.0.0.1:{port}/x"), "check BAE_DATABASE_URL"),
    ] {
        let settings = PostgresSettings::new(url.into());
        assert!(!format!("{settings:?}").contains("hunter2"));
        let Err(Error::Unusable(text)) = Db::connect(&settings).await else { panic!("connected") };
        assert!(text.contains(told) && !text.contains("hunter2"), "{text}");
    }
}

/// Several nodes start at once on an empty database, and an older one on a database that a newer one has migrated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_two_versions_start_side_by_side() {
    let fixture = Fixture::postgres().await;
    let settings = PostgresSettings::new(format!("{}/{}", services::postgres(), fixture.name()).into());
    let tables = "DROP SCHEMA public CASCADE; CREATE SCHEMA public";
    for statement in tables.split("; ") {
        fixture.raw(statement).await;
    }
    for start in futures_util::future::join_all((0..4).map(|_| Db::connect(&settings))).await {
        start.expect("a node starts").close().await;
    }
    let newer = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
                 VALUES (9999, 'of a newer version', true, '\\x00', 1)";
    fixture.raw(newer).await;
    Db::connect(&settings).await.expect("an older node starts").close().await;
    fixture.end().await;
}
