use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncCommands, Script};
use testkit::services::{Service, require};

use crate::servers::{soon, unique};

/// With patience: asked for nothing else, a client gives up after half a second.
pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    connect_with(url, Duration::from_secs(30)).await
}

/// One that waits so long for an answer.
pub(crate) async fn connect_with(url: &str, patience: Duration) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("an address");
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(30)))
        .set_response_timeout(Some(patience));
    soon(client.get_multiplexed_async_connection_with_config(&config)).await.expect("connect")
}

const CLAIM: &str = r"
    if redis.call('EXISTS', KEYS[1]) == 1 then
        return {0, redis.call('GET', KEYS[1])}
    end
    redis.call('SET', KEYS[1], ARGV[1])
    return {1, ARGV[1]}
";

#[tokio::test]
async fn of_many_callers_of_one_script_exactly_one_claims() {
    let Some(redis) = require(Service::Redis) else { return };
    let key = unique("claim");
    let script = Script::new(CLAIM);
    let mut claims = Vec::new();
    for caller in 0..16 {
        let mut connection = connect(redis.url()).await;
        let (script, key) = (script.clone(), key.clone());
        claims.push(tokio::spawn(async move {
            let mut call = script.prepare_invoke();
            call.key(&key).arg(format!("caller-{caller}"));
            call.invoke_async::<(i64, String)>(&mut connection).await
        }));
    }
    let mut winners = Vec::new();
    let mut owners = Vec::new();
    for claim in claims {
        let (won, owner) = soon(claim).await.unwrap().unwrap();
        owners.push(owner.clone());
        winners.extend((won == 1).then_some(owner));
    }
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert!(owners.iter().all(|owner| *owner == winners[0]), "losers got another owner: {owners:?}");
    let stored: String = connect(redis.url()).await.get(&key).await.unwrap();
    assert_eq!(stored, winners[0]);
}

#[tokio::test]
async fn an_acknowledged_write_is_one_on_disk() {
    let Some(redis) = require(Service::Redis) else { return };
    let mut connection = connect(redis.url()).await;
    for (setting, value) in [("appendonly", "yes"), ("appendfsync", "always")] {
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg(setting);
        let answer: Vec<String> = ask.query_async(&mut connection).await.unwrap();
        assert_eq!(answer, [setting, value]);
    }
}
