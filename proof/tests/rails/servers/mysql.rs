use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use testkit::services::{Service, require};

use crate::servers::{soon, unique};

async fn connect(url: &str) -> MySqlConnection {
    soon(MySqlConnection::connect(url)).await.expect("connect")
}

#[tokio::test]
async fn a_commit_is_seen_by_another_connection_and_a_rollback_is_not() {
    for service in [Service::Mariadb, Service::Mysql] {
        let Some(server) = require(service) else { continue };
        commits_and_rollbacks(server.url()).await;
    }
}

/// Each is the server it is called, or one of them would be tested twice.
#[tokio::test]
async fn each_is_the_server_it_is_called() {
    for (service, maria) in [(Service::Mariadb, true), (Service::Mysql, false)] {
        let Some(server) = require(service) else { continue };
        let version = sqlx::query_scalar("SELECT CONVERT(VERSION() USING utf8mb4)");
        let version: String = version.fetch_one(&mut connect(server.url()).await).await.unwrap();
        assert_eq!(version.contains("MariaDB"), maria, "{service} is {version}");
    }
}

async fn commits_and_rollbacks(url: &str) {
    let (mut writer, mut reader) = (connect(url).await, connect(url).await);
    let table = unique("smoke");
    let sql = |text: &str| AssertSqlSafe(text.replace("$table", &table));
    let create = sql("CREATE TABLE $table (id VARCHAR(32) PRIMARY KEY) ENGINE=InnoDB");
    sqlx::query(create).execute(&mut writer).await.unwrap();

    for (id, commit) in [("kept", true), ("lost", false)] {
        let mut transaction = writer.begin().await.unwrap();
        let insert = sql("INSERT INTO $table VALUES (?)");
        sqlx::query(insert).bind(id).execute(&mut *transaction).await.unwrap();
        let early: Vec<String> = sqlx::query_scalar(sql("SELECT id FROM $table WHERE id = ?"))
            .bind(id)
            .fetch_all(&mut reader)
            .await
            .unwrap();
        assert!(early.is_empty(), "{id} was seen before its commit");
        match commit {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
    }

    let ids: Vec<String> =
        sqlx::query_scalar(sql("SELECT id FROM $table")).fetch_all(&mut reader).await.unwrap();
    assert_eq!(ids, ["kept"]);

    let again = sql("INSERT INTO $table VALUES ('kept')");
    let error = sqlx::query(again).execute(&mut writer).await.unwrap_err();
    let unique = error.as_database_error().is_some_and(|error| error.is_unique_violation());
    assert!(unique, "a second row under one key: {error}");
    sqlx::query(sql("DROP TABLE $table")).execute(&mut writer).await.unwrap();
}
