//! The reference service on the user's PostgreSQL: its schemas, its process, and the audit of its tables.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use payments::audit::Audit;
use payments::place;
use payments::schema::Schema;
use tokio::net::TcpListener;
use tower_service::Service;

use super::faults::{Ending, Fault};
use super::ledger::{Charge, Counted};
use crate::args::DemoService;
use crate::failure::Failed;
use crate::gateway::stdin_ended;

/// Most keys whose calls are counted.
const KEYS_MAX: usize = 4_000_000;

/// The prefix of all schemas of demos.
const PREFIX: &str = "semel_demo_";

/// Two schemas on the server: the gateway's store, and the service's books with its own store.
pub(super) struct Books {
    gateway: Schema,
    service: Schema,
}

impl Books {
    pub(super) async fn make(server: &str) -> Result<Self, Failed> {
        if !(server.starts_with("postgres://") || server.starts_with("postgresql://")) {
            return Err(Failed::usage(
                "the demo's --store must be PostgreSQL, postgres://…; without --store it uses a SQLite file",
            ));
        }
        // Schemas that a killed demo could not remove itself.
        match Schema::remove_abandoned(server, PREFIX).await {
            Ok(removed) => {
                removed.iter().for_each(|name| eprintln!("removed: schema {name} of a killed demo"))
            }
            Err(error) => {
                eprintln!("could not remove schemas of killed demos, if there are any: {error}")
            }
        }
        let name = |what: &str| format!("{PREFIX}{:08x}_{what}", fastrand::u32(..));
        let gateway = Schema::make(server, &name("gateway")).await.map_err(unmade)?;
        match Schema::make(server, &name("service")).await {
            Ok(service) => Ok(Self { gateway, service }),
            Err(error) => {
                let _ = gateway.remove().await;
                Err(unmade(error))
            }
        }
    }

    pub(super) fn gateway_url(&self) -> String {
        self.gateway.url()
    }

    pub(super) fn service_url(&self) -> String {
        self.service.url()
    }

    /// The payments in the books, and what is wrong with the books.
    pub(super) async fn audit(&self) -> Result<(Counted, Vec<String>), Failed> {
        let audit =
            Audit::read(&self.service.url()).await.map_err(|error| Failed::not_done(error.to_string()))?;
        let wrong = audit.wrong();
        let charges = audit.payments.into_iter().map(|(id, key, amount)| Charge {
            id,
            key,
            amount: amount.cast_unsigned(),
        });
        Ok((charges.collect(), wrong))
    }

    /// Removes both, unless `keep` is set.
    pub(super) async fn end(self, keep: bool) {
        for schema in [self.gateway, self.service] {
            let name = schema.name().to_owned();
            if keep {
                eprintln!(
                    "kept: schema {name}; inspect it with `semel ls --store 'postgres://…?schema={name}'`"
                );
            }
            let ended = if keep { schema.keep().await } else { schema.remove().await };
            if let Err(error) = ended {
                let what = if keep { "marked as kept" } else { "removed" };
                eprintln!("schema {name} could not be {what}: {error}");
            }
        }
    }
}

fn unmade(error: payments::Failed) -> Failed {
    Failed::not_done(format!("the demo could not create its schemas: {error}"))
}

/// The service as a process of its own, with the same faults as the sample service, injected around all of it.
pub(crate) async fn serve(
    args: &DemoService,
    store: Option<&str>,
    cache: Option<&str>,
) -> Result<(), Failed> {
    let failed = |error: payments::Failed| Failed::not_done(error.to_string());
    let store = store.ok_or_else(|| Failed::usage("the store is not set; give --store postgres://…"))?;
    let app = place::open(store, cache, None).await.map_err(failed)?;
    let listener = TcpListener::bind(args.listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let (seed, calls) = (args.seed, Arc::new(Mutex::new(HashMap::<String, u32>::new())));
    let mut ended = pin!(stdin_ended(args.until_stdin_ends));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut ended => return Ok(()),
        };
        let Ok((stream, _)) = accepted else { continue };
        let _ = stream.set_nodelay(true);
        let (app, calls) = (app.clone(), Arc::clone(&calls));
        let serve = service_fn(move |request: http::Request<hyper::body::Incoming>| {
            let (mut app, fault) = (app.clone(), fault(seed, &calls, &request));
            async move {
                tokio::time::sleep(fault.before).await;
                let mut response = http::Response::default();
                if fault.ending != Ending::FailsBefore {
                    response = app.call(request).await.map_err(io::Error::other)?;
                    tokio::time::sleep(fault.after).await;
                }
                match fault.ending {
                    Ending::Answered => Ok(response),
                    // Without an answer the connection is closed.
                    Ending::AnswerLost => Err(io::Error::from(io::ErrorKind::ConnectionReset)),
                    Ending::FailsBefore | Ending::FailsAfter => {
                        response = http::Response::default();
                        *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
                        Ok(response)
                    }
                }
            }
        });
        // Ends with an error whenever an answer is dropped on purpose.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), serve));
    }
}

fn fault<B>(seed: u64, calls: &Mutex<HashMap<String, u32>>, request: &http::Request<B>) -> Fault {
    let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
    let Some(key) = key.filter(|_| request.method() == http::Method::POST) else { return Fault::NONE };
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    if calls.len() >= KEYS_MAX {
        return Fault::NONE;
    }
    let call = calls.entry(key.to_owned()).or_default();
    *call = call.saturating_add(1);
    Fault::of(seed, key, *call)
}
