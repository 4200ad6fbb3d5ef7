//! A transaction that fits nowhere.

use semel::relay::{OutboxReader, Settled};

use crate::cdc::world::{World, batch, insert};

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_large_transaction_is_read_piece_by_piece() {
    let Some(world) = World::new().await else { return };
    let events: u64 = std::env::var("SEMEL_CDC_EVENTS").map_or(10_000, |text| text.parse().unwrap());
    let client = world.connect().await;
    let mut source = world.options().batch_max(500, 1 << 20).open().await.unwrap().source();
    client.batch_execute(&insert("a", "0")).await.unwrap();
    assert_eq!(batch(&mut source).await.events.len(), 1);
    source.ack(&[Settled::Confirmed]).await.unwrap();
    // 4 KiB each: all of it together would be seen.
    let fill = format!(
        "INSERT INTO semel_outbox (topic, type, key, payload)
         SELECT 't', 'made', n::text, convert_to(lpad(n::text, 4096, '0'), 'UTF8')
         FROM generate_series(1, {events}) n"
    );
    client.batch_execute(&fill).await.unwrap();
    let before = resident_kib();
    let (mut count, mut most) = (0, 0);
    while count < events {
        let batch = batch(&mut source).await;
        let bytes: usize = batch.events.iter().map(|pending| pending.event.payload().len()).sum();
        assert!(batch.events.len() <= 500 && bytes <= (1 << 20) + 4096, "{} {bytes}", batch.events.len());
        for pending in &batch.events {
            count += 1;
            let text = std::str::from_utf8(pending.event.payload()).unwrap();
            assert_eq!(text.trim_start_matches('0').parse::<u64>().unwrap(), count);
        }
        most = most.max(resident_kib().saturating_sub(before));
        source.ack(&vec![Settled::Confirmed; batch.events.len()]).await.unwrap();
    }
    // Half of what the transaction has, and that is more than other tests of this process need meanwhile.
    assert!(most < 2 * events, "{most} KiB more were needed for {events} events of 4 KiB");
    source.release().await.unwrap();
    world.end().await;
}
