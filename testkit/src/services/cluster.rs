//! PostgreSQL servers of one test: made new, copied as a backup or as a standby, killed, promoted.
//!
//! The checkout's own server is shared. What happens to these affects no other test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use super::catalogue::Service;
use super::error::{Error, Result};
use super::instance::{data_dir, dir, ids_of, root};
use super::postgres::{USER, answers, as_user, bin, init, serve, unlock};
use super::process::{Process, tail, wait_until};
use super::recipe::run;
use super::{lock, ports};

const START_MAX: Duration = Duration::from_secs(60);

/// The port search of services starts at lower slots.
const SLOT: u16 = 32;

static COUNT: AtomicU16 = AtomicU16::new(0);

/// A server with its data. Both are gone when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    data: PathBuf,
    log: PathBuf,
    port: u16,
    process: Option<Process>,
}

impl Cluster {
    /// An empty one, running.
    pub fn new() -> Result<Self> {
        let mut cluster = Self::allocate()?;
        init(&cluster.data)?;
        cluster.start()?;
        Ok(cluster)
    }

    /// A copy of its current data, made while it runs. It does not run: start it to go back to that moment.
    pub fn backup(&self) -> Result<Self> {
        let copy = Self::allocate()?;
        self.copy_to(&copy.data, &["--checkpoint=fast"])?;
        Ok(copy)
    }

    /// A copy that follows it, and takes reads only.
    pub fn standby(&self) -> Result<Self> {
        let mut copy = Self::allocate()?;
        self.copy_to(&copy.data, &["--checkpoint=fast", "--write-recovery-conf"])?;
        copy.start()?;
        Ok(copy)
    }

    fn copy_to(&self, data: &Path, more: &[&str]) -> Result<()> {
        let mut copy = as_user(&bin("pg_basebackup")?)?;
        copy.args(["-h", "127.0.0.1", "-U", USER, "-p"]).arg(self.port.to_string());
        copy.arg("-D").arg(data).args(["-X", "stream", "--no-sync"]).args(more).current_dir(data);
        run(copy).map(drop)
    }

    fn allocate() -> Result<Self> {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = data_dir(Service::Postgres.recipe(), &dir(Service::Postgres));
        let name = format!("cluster-{}-{n}", std::process::id());
        let (data, log) = (base.with_file_name(&name), dir(Service::Postgres).join(format!("{name}.log")));
        fs::create_dir_all(&data)?;
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = ids_of(USER)?;
            std::os::unix::fs::chown(&data, Some(uid), Some(gid))?;
        }
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        // One at a time: until a server listens on it, its port looks free to the others.
        let lock = dir(Service::Postgres).join("cluster.lock");
        let _lock = lock::Lock::take(&lock, lock::Mode::Exclusive, START_MAX)?;
        let taken = fs::read_to_string(dir(Service::Postgres).join("cluster.port")).ok();
        let after = taken.and_then(|text| text.parse::<u16>().ok()).unwrap_or(0) % 1_000;
        let port = ports::choose(&root(), SLOT + after, 1)
            .and_then(|ports| ports.first().copied())
            .ok_or_else(|| Error::new("no free port for a test's own PostgreSQL"))?;
        fs::write(dir(Service::Postgres).join("cluster.port"), (after + 1).to_string())?;
        Ok(Self { data, log, port, process: None })
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://{USER}@{}/postgres", self.addr())
    }

    /// Host and port.
    #[must_use]
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it on the data it has, and waits until it answers.
    pub fn start(&mut self) -> Result<()> {
        unlock(&self.data)?;
        let mut command = Command::new(bin("postgres")?);
        if rustix::process::geteuid().is_root() {
            // It ends with us, even if we are killed.
            command = super::recipe::command("setpriv")?;
            command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--pdeathsig", "KILL", "--"]);
            command.arg(bin("postgres")?);
        }
        serve(&mut command, &self.data, self.port);
        let process = Process::spawn("server", command, &self.log)?;
        self.process = Some(process.clone());
        let ready = wait_until(START_MAX, || answers(self.port) || !process.is_alive());
        if ready && process.is_alive() {
            return Ok(());
        }
        Err(Error::new(format!("a test's own PostgreSQL did not start:\n{}", tail(&self.log, 20))))
    }

    /// SIGKILL to all its processes.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            process.kill()?;
        }
        Ok(())
    }

    /// Promotes a standby to a server of its own.
    pub fn promote(&self) -> Result<()> {
        let mut promote = as_user(&bin("pg_ctl")?)?;
        promote.arg("-D").arg(&self.data).args(["-w", "-t", "60", "promote"]).current_dir(&self.data);
        run(promote).map(drop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("could not stop a test's own PostgreSQL: {error}");
        }
        let _ = fs::remove_dir_all(&self.data);
        let _ = fs::remove_file(&self.log);
    }
}
