//! Load from wrk.

use std::path::PathBuf;
use std::process::Command;

use crate::Failed;

/// What each request carries.
#[derive(Clone, Copy)]
pub(crate) enum Load {
    /// A key never used before.
    Fresh,
    /// One of a few keys: after a moment every request is a replay.
    Repeated,
    /// A GET that passes through.
    Get,
}

pub(crate) struct Rate {
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Runs wrk against an address and fails if anything but success came back.
pub(crate) fn run(address: &str, load: Load, connections: usize, seconds: usize) -> Result<Rate, Failed> {
    let script = script(load)?;
    let url = format!("http://{address}{}", if matches!(load, Load::Get) { "/" } else { "/payments" });
    let output = Command::new("wrk")
        .args([
            "-t1",
            &format!("-c{connections}"),
            &format!("-d{seconds}s"),
            "--latency",
            "--timeout",
            "10s",
            "-s",
        ])
        .arg(&script)
        .arg(&url)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let refused = text.lines().find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses: "));
    let refused: u64 = refused.map_or(Ok(0), str::parse)?;
    // The first calls of a repeated key may meet: those are answered "in progress", as they must be.
    let allowed = if matches!(load, Load::Repeated) { 200 } else { 0 };
    if !output.status.success() || refused > allowed || text.contains("Socket errors") {
        return Err(format!("wrk on {url}: {text}{}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let find = |name: &str| -> Result<String, Failed> {
        let line = text.lines().find(|line| line.trim_start().starts_with(name));
        let word = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(word.ok_or_else(|| format!("wrk did not say {name}: {text}"))?.to_owned())
    };
    let per_s = find("Requests/sec:")?.parse()?;
    Ok(Rate { per_s, p50_us: micros(&find("50%")?)?, p99_us: micros(&find("99%")?)? })
}

fn micros(text: &str) -> Result<f64, Failed> {
    for (unit, factor) in [("us", 1.0), ("ms", 1e3), ("s", 1e6)] {
        if let Some(number) = text.strip_suffix(unit) {
            return Ok(number.parse::<f64>()? * factor);
        }
    }
    Err(format!("{text:?} is no time").into())
}

fn script(load: Load) -> Result<PathBuf, Failed> {
    let body = r#"{"amount":4200,"currency":"EUR","card":"tok_visa","reference":"order-1001"}"#;
    // Seeded by the clock: keys of two runs against one server must not meet.
    let key = match load {
        Load::Get => String::new(),
        Load::Fresh => "h['Idempotency-Key'] = string.format('%d-%d', start, n)".to_owned(),
        Load::Repeated => "h['Idempotency-Key'] = string.format('again-%d', n % 100)".to_owned(),
    };
    let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_micros();
    let method = if matches!(load, Load::Get) { "GET" } else { "POST" };
    let script = format!(
        "local start, n = {start}, 0\nlocal body = '{body}'\nrequest = function()\n  n = n + 1\n  \
         local h = {{['Content-Type'] = 'application/json'}}\n  {key}\n  \
         return wrk.format('{method}', nil, h, {})\nend\n",
        if method == "GET" { "nil" } else { "body" },
    );
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{}-{method}-{}.lua", std::process::id(), key.len()));
    std::fs::write(&path, script)?;
    Ok(path)
}
