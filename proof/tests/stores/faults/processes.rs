//! Several processes on one store: one is killed, or their clocks are years apart.

use std::process::Command;
use std::time::{Duration, SystemTime};

use proof::load::{Doubt, Settings};
use semel::store::AnyStore;
use testkit::child::Child;
use testkit::services::{Service, install_packages, require};

use crate::faults::place::Place;
use crate::faults::scene::{PATIENCE, Scene};

const INTENTS: usize = 400;
const LEASE: Duration = Duration::from_secs(2);
const YEAR: u64 = 365 * 24 * 60 * 60;

/// The store one of these tests is on. The cluster is the shared one: no test hurts it here.
struct Shared {
    place: Option<Place>,
    scene: Scene,
    url: String,
}

impl Shared {
    async fn on(service: Service, server: &str) -> Self {
        let place = Place::on(service, server).await;
        let url = place.url();
        Self { scene: Self::scene(place.store().await), place: Some(place), url }
    }

    async fn on_sqlite(file: &std::path::Path) -> Self {
        let url = format!("sqlite:{}", file.display());
        Self { scene: Self::scene(semel::store::open(&url).await.unwrap()), place: None, url }
    }

    fn scene(store: AnyStore) -> Scene {
        Scene::with(store, Settings { lease: LEASE, ..Settings::default() })
    }

    /// A process under load; `with` is what its command line begins with.
    fn start(&self, with: &[&str], seed: u64) -> (Child, u64) {
        let mut words: Vec<String> = with.iter().map(|word| (*word).to_owned()).collect();
        words.extend([env!("CARGO_BIN_EXE_proof-worker").to_owned(), "party".to_owned()]);
        words.extend([self.url.clone(), self.scene.dir().display().to_string()]);
        words.extend([INTENTS.to_string(), LEASE.as_millis().to_string(), seed.to_string()]);
        let mut command = Command::new(&words[0]);
        // Only the time of day is another one; a second still takes a second.
        command.args(&words[1..]).env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
        let mut child = Child::spawn(command, None).unwrap();
        let line = child.next_line(PATIENCE).unwrap_or_else(|error| {
            panic!("{error}: {:?}", child.wait(PATIENCE).map(|ended| ended.stderr));
        });
        let clock = line.strip_prefix("working at ").unwrap().parse().unwrap();
        (child, clock)
    }

    fn end(mut child: Child) {
        child.send("stop").unwrap();
        assert_eq!(child.next_line(PATIENCE).unwrap(), "drained");
        assert!(child.wait(PATIENCE).unwrap().status.success());
    }

    /// Everybody asks again, here; then the judge looks.
    async fn judged(&self, name: &str, doubt: Doubt) -> proof::load::Judgement {
        self.scene.settled(name, INTENTS, doubt).await
    }
}

/// Two processes, one of which is killed three times and comes back.
async fn one_of_two_is_killed(shared: Shared, name: &str) {
    let seed = shared.scene.seed();
    let (steady, _) = shared.start(&[], seed);
    for life in 1..=3 {
        let (mut victim, _) = shared.start(&[], seed.wrapping_add(life));
        tokio::time::sleep(Duration::from_millis(700)).await;
        victim.kill().unwrap();
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    Shared::end(steady);
    // What the dead one was at is uncertain, where nothing protects it and no lookup can be asked.
    let judgement = shared.judged(&format!("{name}: one of two processes killed"), Doubt::Some).await;
    judgement.expect_clean();
    assert!(judgement.done > INTENTS, "{judgement}");
    drop(shared.place);
}

macro_rules! killed {
    ($($name:ident $service:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "prove: random traffic"]
        async fn $name() {
            let Some(server) = require(Service::$service) else { return };
            let shared = Shared::on(Service::$service, server.url()).await;
            one_of_two_is_killed(shared, Service::$service.name()).await;
        }
    )*};
}

killed! {
    one_of_two_processes_on_postgres_is_killed Postgres
    one_of_two_processes_on_mariadb_is_killed Mariadb
    one_of_two_processes_on_mysql_is_killed Mysql
    one_of_two_processes_on_redis_is_killed Redis
    one_of_two_processes_on_a_cluster_is_killed RedisCluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_processes_on_sqlite_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    one_of_two_is_killed(Shared::on_sqlite(&dir.path().join("semel.db")).await, "sqlite").await;
}

/// One process lives ten years ago, one in ten years, and one now.
async fn clocks_are_years_apart(service: Service) {
    let Some(server) = require(service) else { return };
    install_packages(&missing_faketime()).unwrap();
    let shared = Shared::on(service, server.url()).await;
    let seed = shared.scene.seed();
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let (past, then) = shared.start(&["faketime", "-f", "-10y"], seed);
    assert!(then < now - 9 * YEAR, "its clock is right: {then}");
    let (future, then) = shared.start(&["faketime", "-f", "+10y"], seed.wrapping_add(1));
    assert!(then > now + 9 * YEAR, "its clock is right: {then}");
    let (present, _) = shared.start(&[], seed.wrapping_add(2));
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    for process in [past, future, present] {
        Shared::end(process);
    }
    let judgement = shared.judged(&format!("{service}: clocks twenty years apart"), Doubt::None).await;
    judgement.expect_clean();
}

fn missing_faketime() -> Vec<String> {
    let there = Command::new("faketime").arg("--version").output().is_ok();
    if there { Vec::new() } else { vec!["faketime".to_owned()] }
}

macro_rules! clocks {
    ($($name:ident $service:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        #[ignore = "prove: random traffic"]
        async fn $name() {
            clocks_are_years_apart(Service::$service).await;
        }
    )*};
}

clocks! {
    clients_of_postgres_have_clocks_years_apart Postgres
    clients_of_mariadb_have_clocks_years_apart Mariadb
    clients_of_mysql_have_clocks_years_apart Mysql
    clients_of_redis_have_clocks_years_apart Redis
    clients_of_a_cluster_have_clocks_years_apart RedisCluster
}
