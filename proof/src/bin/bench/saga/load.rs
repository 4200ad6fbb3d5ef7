//! Callers that each wait for their saga's end, and what that took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use semel::saga::{Registered, SagaEnd, Sagas};
use semel::{Key, Scope};

use super::place::Place;
use super::shop::{self, Kind, Order, Shop};
use crate::Failed;
use crate::times::Times;

/// What is run.
pub(super) struct Load {
    pub(super) kind: Kind,
    pub(super) callers: usize,
    /// Of all callers together.
    pub(super) sagas: usize,
    pub(super) round: usize,
}

/// What it came to.
pub(super) struct Loaded {
    pub(super) per_s: f64,
    /// Processor time of this process, for one saga.
    pub(super) cpu_ms: f64,
    /// Processor time of the database server, for one saga.
    pub(super) server_ms: Option<f64>,
    /// How long callers waited.
    pub(super) times: Times,
}

impl Loaded {
    /// In words.
    pub(super) fn costs(&self) -> String {
        let server = self.server_ms.map(|ms| format!(" + {ms:.3} ms of the server"));
        format!("{:.3} ms of processor time for each{}", self.cpu_ms, server.unwrap_or_default())
    }
}

impl Load {
    pub(super) async fn run(&self, place: &Place) -> Result<Loaded, Failed> {
        let (sagas, registered) = shop::start(place.journal().await?, self.kind)?;
        let loaded = self.run_on(place, &sagas, &registered).await;
        sagas.drain(Duration::from_secs(10)).await;
        loaded
    }

    /// Some sagas are run first: connections are open, and the worker has joined.
    pub(super) async fn run_on(
        &self,
        place: &Place,
        sagas: &Sagas<Shop>,
        registered: &Registered<Order, u64>,
    ) -> Result<Loaded, Failed> {
        self.each("warm", sagas, registered, self.sagas.div_ceil(10)).await?;
        let meter = Meter::begin(place)?;
        let times = self.each("run", sagas, registered, self.sagas).await?;
        meter.end(place, self.sagas, times)
    }

    async fn each(
        &self,
        name: &str,
        sagas: &Sagas<Shop>,
        registered: &Registered<Order, u64>,
        of_all: usize,
    ) -> Result<Times, Failed> {
        let scope = Arc::new(Scope::tenant(&Key::random().as_str()[..16])?);
        let each = of_all.div_ceil(self.callers).max(1);
        let callers: Vec<_> = (0..self.callers)
            .map(|caller| {
                let (sagas, registered, scope) = (sagas.clone(), registered.clone(), Arc::clone(&scope));
                let name = format!("{name}-{}-{caller}", self.round);
                tokio::spawn(async move {
                    let mut times = Times::default();
                    for n in 0..each {
                        let order = format!("{name}-{n}");
                        let begin = Instant::now();
                        let end = sagas.once(&registered, &scope, &Key::new(order.as_str())?, &order).await?;
                        times.push(begin.elapsed());
                        if !matches!(end, SagaEnd::Completed(_)) {
                            return Err(Failed::from(format!("a saga ended as {end:?}")));
                        }
                    }
                    Ok(times)
                })
            })
            .collect();
        let mut times = Times::default();
        for caller in callers {
            times.extend(caller.await??);
        }
        Ok(times)
    }
}

/// Time, and processor time.
pub(super) struct Meter {
    begin: Instant,
    process: f64,
    server: Option<f64>,
}

impl Meter {
    pub(super) fn begin(place: &Place) -> Result<Self, Failed> {
        let process = crate::usage::cpu_seconds(std::process::id())?;
        Ok(Self { begin: Instant::now(), process, server: place.server_cpu_seconds()? })
    }

    pub(super) fn end(self, place: &Place, sagas: usize, times: Times) -> Result<Loaded, Failed> {
        let sagas = sagas as f64;
        let per_s = sagas / self.begin.elapsed().as_secs_f64();
        let cpu_ms = (crate::usage::cpu_seconds(std::process::id())? - self.process) * 1_000.0 / sagas;
        let server = place.server_cpu_seconds()?;
        let server_ms = self.server.zip(server).map(|(before, now)| (now - before) * 1_000.0 / sagas);
        Ok(Loaded { per_s, cpu_ms, server_ms, times })
    }
}
