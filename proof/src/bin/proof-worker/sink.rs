//! A relay in small, for killing: takes the numbers from 0 to COUNT as its table, and publishes them exactly once.
//!
//! `proof-worker sink BOOTSTRAP TRANSACTIONAL_ID POSITION_TOPIC TOPIC,TOPIC COUNT BATCH`. It keeps nothing itself: where to go
//! on is what the sink says when it begins. It stops at the points of [`semel::crash`] around the commit.

use std::process::ExitCode;
use std::sync::Arc;

use semel::outbox::Event;
use semel::sink::ExactlyOnce;
use semel::sink::kafka::KafkaSink;
use uuid::Uuid;

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
pub(crate) async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(2).collect();
    match relay(&args).await {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn relay(args: &[String]) -> Result<String, Failed> {
    let [bootstrap, id, positions, topics, count, batch] = args else {
        return Err("usage: proof-worker sink BOOTSTRAP ID POSITIONS TOPICS COUNT BATCH".into());
    };
    let (count, batch): (u64, u64) = (count.parse()?, batch.parse()?);
    let topics: Vec<&str> = topics.split(',').collect();
    let mut sink = KafkaSink::options(bootstrap).position_topic(positions).exactly_once(id)?;
    let position = sink.begin().await?;
    let mut next = position.map_or(Ok(0), |bytes| String::from_utf8_lossy(&bytes).parse::<u64>())?;
    println!("from {next}");
    while next < count {
        let end = (next + batch).min(count);
        let events: Vec<_> = (next..end).map(|n| event(&topics, n)).collect::<Result<_, _>>()?;
        match sink.publish_at(&events, end.to_string().as_bytes()).await {
            Ok(()) => next = end,
            Err(error) if error.is_fenced() => return Ok("fenced".to_owned()),
            Err(error) => return Err(error.into()),
        }
    }
    Ok("done".to_owned())
}

fn event(topics: &[&str], n: u64) -> Result<Arc<Event>, Failed> {
    let topic = topics[usize::try_from(n)? % topics.len()];
    let event = Event::new(topic, "number", n.to_string())?.key(&format!("key-{}", n % 10))?;
    Ok(Arc::new(event.with_id(Uuid::from_u128(u128::from(n) + 1))))
}
