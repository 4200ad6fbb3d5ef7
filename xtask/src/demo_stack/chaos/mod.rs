//! `--chaos`: clients ask at a steady pace, everything is killed in turn, and in the end everything is counted.

mod load;
mod seen;
pub(super) mod servers;
mod turns;
mod verdict;

use std::time::{Duration, Instant};

use self::load::Load;
use self::seen::Seen;
use self::turns::Turns;
use self::verdict::Verdict;
use super::clients::Client;
use super::parts::Part;
use super::stack::Stack;
use super::{INTERRUPTED, Patience};

/// Nothing new for this long, with everything up: what is missing then will not come any more.
const SILENCE_SECONDS_MAX: u64 = 45;

/// What Redis is for here, and why it may be killed like the rest.
const REDIS: &str = "Redis is killed as well, and comes back empty. It only remembers answers that are committed in \
                     PostgreSQL beside the payments they are of: a retry that does not find its answer there finds it in \
                     PostgreSQL. No promise rests on what Redis keeps.";

pub(super) fn run(stack: &mut Stack, duration: Duration, json: bool) -> Result<(), String> {
    let mut servers = stack.servers.take().ok_or("the servers are shared: nothing may be killed")?;
    for spared in servers.spared() {
        eprintln!("  {spared} was given by the environment and is not killed");
    }
    eprintln!("  {REDIS}");
    eprintln!("  for {} s everything is killed in turn …", duration.as_secs());
    let load = Load::start(Client::new(stack.address(), stack.merchant()));
    let mut turns = Turns::default();
    let begin = Instant::now();
    let mut taken = Ok(());
    while taken.is_ok() && begin.elapsed() < duration {
        taken = turns.take(stack, &mut servers, &load);
    }
    if taken.is_ok() {
        eprintln!("  everything is up; waiting for work in flight to finish …");
    }
    let asked = load.stop();
    // A stack that does not come back is still judged by what it leaves behind.
    let finished = taken.and_then(|()| finish(stack));
    let seen = match (Seen::read(stack), &finished) {
        (Ok(seen), _) => seen,
        (Err(error), Err(why)) => return Err(format!("{why}; and nothing can be counted: {error}")),
        (Err(error), Ok(())) => return Err(error),
    };
    let verdict = Verdict::judge(&asked, &seen);
    let report = if json { verdict.json(&asked, &turns) } else { verdict.table(&asked, &turns) };
    print!("{report}");
    // Released for others before the rest ends.
    drop(servers);
    finished?;
    match verdict.wrong() {
        [] => Ok(()),
        wrong => Err(wrong.join("; ")),
    }
}

/// Lets everything arrive. Then stops the relay, and the consumer once it has had time for duplicates.
fn finish(stack: &mut Stack) -> Result<(), String> {
    let (mut last, mut patience) = (usize::MAX, Patience::new(SILENCE_SECONDS_MAX));
    loop {
        let missing = seen::notifications_missing(stack)?;
        if missing == 0 {
            break;
        }
        if missing != last {
            (last, patience) = (missing, Patience::new(SILENCE_SECONDS_MAX));
        }
        // The verdict reports what is missing.
        if patience.check("notifications are missing").is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for part in Part::ALL {
        stack.check(part)?;
    }
    stack.stop(Part::Relay)?;
    seen::wait_for_the_consumer(stack)?;
    stack.stop(Part::Consumer)
}

fn interrupted() -> bool {
    INTERRUPTED.load(std::sync::atomic::Ordering::SeqCst)
}
