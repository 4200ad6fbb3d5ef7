//! PgBouncer in front of a PostgreSQL, for one test: every transaction may get another session.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::catalogue::Service;
use super::error::{Error, Result};
use super::install::install_packages;
use super::instance::{data_dir, dir, ids_of};
use super::postgres::USER;
use super::process::{Process, tail, wait_until};

const PROGRAM: &str = "/usr/sbin/pgbouncer";

static COUNT: AtomicU16 = AtomicU16::new(0);

/// A pooler in transaction mode. Ends when this is dropped, and its sessions with it.
#[derive(Debug)]
pub struct Pooler {
    dir: PathBuf,
    port: u16,
    user: String,
    process: Process,
}

impl Pooler {
    /// In front of the server at `host:port`, where all clients of the pooler are `user`.
    pub fn start(server: &str, user: &str) -> Result<Self> {
        if !fs::exists(PROGRAM)? {
            install_packages(&["pgbouncer".to_owned()])?;
        }
        let (host, server_port) = server.split_once(':').ok_or_else(|| Error::new("host:port is needed"))?;
        let name = format!("pooler-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = data_dir(Service::Postgres.recipe(), &dir(Service::Postgres)).with_file_name(name);
        fs::create_dir_all(&dir)?;
        let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let (users, log) = (dir.join("users"), dir.join("log"));
        fs::write(&users, format!("\"{user}\" \"\"\n"))?;
        let settings = format!(
            "[databases]\npostgres = host={host} port={server_port} dbname=postgres user={user}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nauth_file = {users}\n\
             pool_mode = transaction\nmax_client_conn = 200\ndefault_pool_size = 4\nunix_socket_dir =\n",
            users = users.display(),
        );
        let config = dir.join("pgbouncer.ini");
        fs::write(&config, settings)?;
        let mut command = Command::new(PROGRAM);
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = ids_of(USER)?;
            for path in [&dir, &users, &config] {
                std::os::unix::fs::chown(path, Some(uid), Some(gid))?;
            }
            // It refuses root; and it ends with us, even if we are killed.
            command = super::recipe::command("setpriv")?;
            command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--pdeathsig", "KILL", "--"]);
            command.arg(PROGRAM);
        }
        command.arg(&config).current_dir(&dir);
        let process = Process::spawn("pooler", command, &log)?;
        let pooler = Self { dir, port, user: user.to_owned(), process };
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok() || !pooler.process.is_alive();
        if wait_until(Duration::from_secs(20), listens) && pooler.process.is_alive() {
            return Ok(pooler);
        }
        Err(Error::new(format!("PgBouncer did not start:\n{}", tail(&log, 20))))
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{}@127.0.0.1:{}/postgres", self.user, self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill() {
            eprintln!("could not stop a pooler: {error}");
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}
