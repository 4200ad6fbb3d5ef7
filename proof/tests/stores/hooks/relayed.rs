//! Both of semel's ends: its sink signs and posts, its receiver checks and handles.

use std::sync::Arc;

use semel::outbox::Event;
use semel::sink::webhook::WebhookSink;
use semel::sink::{Published, Sink};

use crate::hooks::place::Place;
use crate::hooks::provider::SECRET;
use crate::hooks::server::Server;

#[tokio::test(flavor = "multi_thread")]
async fn what_the_sink_posts_twice_is_handled_once() {
    let place = Place::sqlite();
    let server = Server::start(&place, "good", None);
    let url = format!("http://{}/standard", server.address);
    let sink = |secret| WebhookSink::options().allow_private().any_topic(&url, secret).unwrap().open();
    let events: Vec<_> = (0..5)
        .map(|n| Arc::new(Event::new("payments", "payment.completed", n.to_string()).unwrap()))
        .collect();
    for _ in 0..2 {
        let answers = sink(SECRET).publish(&events).await;
        assert!(answers.iter().all(|answer| matches!(answer, Published::Confirmed)), "{answers:?}");
    }
    assert_eq!(place.effects("%").await, 5);
    for event in &events {
        assert_eq!(place.effects(&event.id().to_string()).await, 1);
    }
    // Somebody else's secret: not confirmed, and not handled.
    let other = Arc::new(Event::new("payments", "payment.completed", "6").unwrap());
    let answers = sink("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").publish(&[other]).await;
    assert!(matches!(answers[..], [Published::Failed(_)]), "{answers:?}");
    assert_eq!(place.effects("%").await, 5);
}
