//! Through PgBouncer, which hands every transaction to another session.

use std::process::{Child, Command, Stdio};

use semel::conformance::{self, Harness};
use semel::store::Store;
use semel::store::postgres::PostgresStore;

use super::place::{PATIENT, Place, apart, clear_away};
use super::work::*;

/// A PgBouncer in front of the server, for one database of a test's own. Ends with this.
struct Bouncer {
    child: Child,
    port: u16,
    place: Place,
    _dir: tempfile::TempDir,
}

fn installed() -> bool {
    let found = || std::path::Path::new("/usr/sbin/pgbouncer").exists();
    found() || (testkit::services::install_packages(&["pgbouncer".to_owned()]).is_ok() && found())
}

impl Bouncer {
    fn start(more: &str) -> Option<Self> {
        let place = Place::take()?;
        assert!(installed(), "PgBouncer is not installed and cannot be; install the package pgbouncer");
        let dir = tempfile::tempdir().unwrap();
        let port = testkit::services::spare_port();
        let address = place.server.rsplit_once('@').unwrap().1.split_once('/').unwrap().0;
        let (host, server_port) = address.split_once(':').unwrap();
        // A role whose tables are found without a setting of the session.
        let name = &place.schema;
        let role = format!("CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET search_path = {name}");
        apart(&place.server, role);
        let users = dir.path().join("users");
        std::fs::write(&users, format!("\"{name}\" \"\"\n")).unwrap();
        let ini = format!(
            "[databases]\npostgres = host={host} port={server_port} dbname=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nauth_file = {users}\n\
             pool_mode = transaction\nmax_client_conn = 200\ndefault_pool_size = 4\nunix_socket_dir =\n\
             logfile = {log}\npidfile = {pid}\n{more}\n",
            users = users.display(),
            log = dir.path().join("log").display(),
            pid = dir.path().join("pid").display(),
        )
        // With `auth_type = any` the server is reached as the user the database names.
        .replace("dbname=postgres\n", &format!("dbname=postgres user={name}\n"));
        let config = dir.path().join("pgbouncer.ini");
        std::fs::write(&config, ini).unwrap();
        // It refuses root; the directory has to be the other user's then.
        let mut command = Command::new("/usr/sbin/pgbouncer");
        if std::env::var("USER").as_deref() == Ok("root")
            || std::fs::metadata("/root").is_ok_and(|_| is_root())
        {
            let owned = Command::new("chown").args(["-R", "postgres"]).arg(dir.path()).status().unwrap();
            assert!(owned.success());
            command = Command::new("setpriv");
            command.args([
                "--reuid",
                "postgres",
                "--regid",
                "postgres",
                "--init-groups",
                "--",
                "/usr/sbin/pgbouncer",
            ]);
        }
        let child =
            command.arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let bouncer = Self { child: child.unwrap(), port, place, _dir: dir };
        let until = std::time::Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(std::time::Instant::now() < until, "PgBouncer does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Some(bouncer)
    }

    fn url(&self, more: &str) -> String {
        format!("postgres://{}@127.0.0.1:{}/postgres?{PATIENT}{more}", self.place.schema, self.port)
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let name = &self.place.schema;
        let own = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'");
        clear_away(&self.place.server, own);
        clear_away(&self.place.server, format!("DROP OWNED BY {name} CASCADE; DROP ROLE {name}"));
    }
}

impl Harness for Bouncer {
    type Store = PostgresStore;

    async fn store(&self) -> PostgresStore {
        PostgresStore::open(&self.url("")).await.expect("the store opens through PgBouncer")
    }

    async fn reopen(&self, store: PostgresStore) -> Option<PostgresStore> {
        store.close().await;
        Some(self.store().await)
    }
}

/// Slow: all laws, one after the other, through one pooler.
#[test]
fn every_law_holds_through_the_pooler() {
    let Some(bouncer) = Bouncer::start("") else { return };
    for law in conformance::LAWS {
        conformance::block_on(conformance::run(law, &bouncer));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pooler_is_noticed_by_itself() {
    for more in ["", "ignore_startup_parameters = options"] {
        let Some(bouncer) = Bouncer::start(more) else { return };
        let store = PostgresStore::open(&bouncer.url("")).await.unwrap();
        assert!(store.settings().pooled, "{more}");
        let tasks: Vec<_> = (0..64)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move {
                    let ticket = run(&store, &format!("pooled-{n}")).await;
                    soon(store.finish(ticket, finish())).await.unwrap();
                })
            })
            .collect();
        for task in tasks {
            soon(task).await.unwrap();
        }
        let store = PostgresStore::open(&bouncer.url("&pgbouncer=true")).await.unwrap();
        assert!(store.settings().pooled);
        store.close().await;
        // A schema of the URL's cannot be had here, unless it is the role's own.
        PostgresStore::open(&bouncer.url(&format!("&schema={}", bouncer.place.schema))).await.unwrap();
        let error = PostgresStore::open(&bouncer.url("&schema=public")).await.unwrap_err();
        assert!(error.to_string().contains("ALTER ROLE"), "{error}");
    }
}
