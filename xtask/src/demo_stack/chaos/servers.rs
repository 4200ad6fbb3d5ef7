//! Servers for this run alone: copies that no test shares.

use testkit::services::{Alone, Condition, Service, alone, status};

use crate::demo_stack::stack::SERVICES;

/// The servers that may be killed.
#[derive(Debug)]
pub(in crate::demo_stack) struct Servers {
    ours: Vec<(Service, Alone)>,
    spared: Vec<Service>,
}

impl Servers {
    /// Waits until no other test uses them.
    pub(in crate::demo_stack) fn take() -> Result<Self, String> {
        let (mut ours, mut spared) = (Vec::new(), Vec::new());
        for service in SERVICES {
            if status(service).condition == Condition::Given {
                spared.push(service);
                continue;
            }
            ours.push((
                service,
                alone(service).ok_or_else(|| format!("{service} is excluded from this run"))?,
            ));
        }
        Ok(Self { ours, spared })
    }

    /// Its address, unless it is spared.
    pub(in crate::demo_stack) fn address(&self, service: Service) -> Option<String> {
        let ours = self.ours.iter().find(|(of, _)| *of == service);
        ours.map(|(_, alone)| alone.url().to_owned())
    }

    pub(super) fn spared(&self) -> &[Service] {
        &self.spared
    }

    pub(super) fn has(&self, service: Service) -> bool {
        self.ours.iter().any(|(of, _)| *of == service)
    }

    /// SIGKILL to all of its processes.
    pub(super) fn kill(&mut self, service: Service) -> Result<(), String> {
        self.of(service)?.kill().map_err(|error| error.to_string())
    }

    /// Starts it on the data it had, at its old address. Redis starts empty: it is a cache here, and nothing may
    /// depend on what it keeps.
    pub(super) fn start(&mut self, service: Service) -> Result<(), String> {
        let server = self.of(service)?;
        let before = server.url().to_owned();
        let started = match service {
            Service::Redis => server.restart_with(&["--appendonly", "no"]),
            _ => server.start(),
        };
        started.map_err(|error| error.to_string())?;
        match server.url() == before {
            true => Ok(()),
            false => Err(format!("{service} came back at another address; run it again")),
        }
    }

    fn of(&mut self, service: Service) -> Result<&mut Alone, String> {
        let ours = self.ours.iter_mut().find(|(of, _)| *of == service);
        ours.map(|(_, alone)| alone).ok_or_else(|| format!("{service} is not ours to kill"))
    }
}
