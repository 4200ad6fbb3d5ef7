//! A process is killed at each point of a saga, and another one goes on; orders, ledger and outbox judge.

use semel::crash;

use super::place::{Place, Seen};

fn completed() -> Seen {
    Seen { orders: vec!["created".to_owned()], holds: 1, releases: 0, charges: 1, mails: 1, events: 1 }
}

fn undone() -> Seen {
    let orders = vec!["created".to_owned(), "cancelled".to_owned()];
    Seen { orders, holds: 1, releases: 1, charges: 0, mails: 0, events: 0 }
}

/// All points, each time it is passed: how often that is, the processes show.
async fn killed_at_every_point(place: &Place, what: &str, judge: impl Fn(&str, &str, Seen)) {
    for point in crash::IN_SAGA.into_iter().chain([crash::BEFORE_COMMIT]) {
        let mut passed = 0;
        for nth in 1..20 {
            let (key, at) = (format!("{what}.{point}.{nth}"), format!("{point}:{nth}"));
            if !place.kill_at(&key, what, &at) {
                break;
            }
            passed += 1;
            place.end_leases().await;
            let end = place.call(&key, what);
            println!("{what}, killed at {at}: {end}");
            judge(&at, &end, place.seen(&key).await);
            assert_eq!(place.call(&key, what), end, "killed at {at}: another answer");
        }
        // A point that is never passed would be a row that was never tried.
        assert!(passed > 0, "{what}: {point} is never passed");
    }
}

/// Slow: two processes for each point at which the first is killed.
async fn a_saga_that_completes_does_each_step_once(place: Place) {
    killed_at_every_point(&place, "completes", |at, end, seen| {
        assert_eq!((end, seen), ("completed", completed()), "killed at {at}");
    })
    .await;
    place.end().await;
}

/// Slow: two processes for each point at which the first is killed.
async fn a_saga_that_is_refused_leaves_nothing(place: Place) {
    killed_at_every_point(&place, "refused", |at, end, seen| {
        assert_eq!((end, seen), ("undone", undone()), "killed at {at}");
    })
    .await;
    place.end().await;
}

/// The process that goes on is killed, too, at each of its points; a third one ends it.
async fn killed_twice(place: &Place, what: &str, judge: impl Fn(&str, &str, Seen)) {
    let points = || crash::IN_SAGA.into_iter().chain([crash::BEFORE_COMMIT]);
    let mut pairs = 0;
    for first in points().flat_map(|point| (1..20).map(move |nth| format!("{point}:{nth}"))) {
        let mut passed = false;
        for second in points().flat_map(|point| (1..4).map(move |nth| format!("{point}:{nth}"))) {
            let key = format!("{what}.{first}.{second}");
            if !place.kill_at(&key, what, &first) {
                break;
            }
            passed = true;
            place.end_leases().await;
            let twice = place.kill_at(&key, what, &second);
            place.end_leases().await;
            let end = place.call(&key, what);
            pairs += usize::from(twice);
            judge(&format!("{first}, then {second}"), &end, place.seen(&key).await);
        }
        if passed {
            println!("{what}, killed at {first}, and again at each point of the recovery");
        }
    }
    println!("figures: {pairs} pairs of points");
    assert!(pairs > 50, "{pairs} pairs");
}

async fn killed_twice_it_completes(place: Place) {
    killed_twice(&place, "completes", |at, end, seen| {
        assert_eq!((end, seen), ("completed", completed()), "killed at {at}");
    })
    .await;
    place.end().await;
}

async fn killed_twice_it_is_undone(place: Place) {
    killed_twice(&place, "refused", |at, end, seen| {
        assert_eq!((end, seen), ("undone", undone()), "killed at {at}");
    })
    .await;
    place.end().await;
}

/// It is not known whether the charge happened: it is parked, and never charged again.
async fn a_charge_in_doubt_is_parked(place: Place) {
    let mut parked = 0;
    for nth in 1..=8 {
        let at = format!("{}:{nth}", crash::AFTER_SAGA_WRITE);
        let key = format!("parked.{nth}");
        if !place.kill_at(&key, "parked", &at) {
            break;
        }
        place.end_leases().await;
        let end = place.call(&key, "parked");
        let seen = place.seen(&key).await;
        println!("parked, killed at {at}: {end}, {} charges", seen.charges);
        if end == "parked" {
            parked += 1;
            assert_eq!(
                (seen.charges, seen.mails, seen.events, seen.releases),
                (0, 0, 0, 0),
                "killed at {at}"
            );
        } else {
            assert_eq!((end.as_str(), seen), ("completed", completed()), "killed at {at}");
        }
    }
    assert_eq!(parked, 1, "one point lies between the charge's beginning and its call");
    let at = format!("{}:2", crash::AFTER_SAGA_CALL);
    assert!(place.kill_at("charged", "parked", &at));
    place.end_leases().await;
    assert_eq!(place.call("charged", "parked"), "parked");
    let seen = place.seen("charged").await;
    assert_eq!(
        (seen.charges, seen.mails, seen.releases),
        (1, 0, 0),
        "it was charged, and the journal does not know"
    );
    place.end().await;
}

macro_rules! laws {
    ($($(#[$attribute:meta])? $law:ident),+ $(,)?) => {
        laws!(@ postgres $($(#[$attribute])? $law)+);
        laws!(@ sqlx_postgres $($(#[$attribute])? $law)+);
        laws!(@ mariadb $($(#[$attribute])? $law)+);
        laws!(@ mysql $($(#[$attribute])? $law)+);
        laws!(@ sqlite $($(#[$attribute])? $law)+);
    };
    (@ $database:ident $($(#[$attribute:meta])? $law:ident)+) => {
        mod $database {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                $(#[$attribute])?
                async fn $law() {
                    let Some(place) = super::Place::$database().await else { return };
                    super::$law(place).await;
                }
            )+
        }
    };
}

laws!(
    a_saga_that_completes_does_each_step_once,
    a_saga_that_is_refused_leaves_nothing,
    a_charge_in_doubt_is_parked,
    #[ignore = "prove: pairs of points take minutes"]
    killed_twice_it_completes,
    #[ignore = "prove: pairs of points take minutes"]
    killed_twice_it_is_undone,
);

/// What the table has to catch: rows that are committed apart from the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_catches_a_step_whose_rows_are_committed_apart() {
    let Some(place) = Place::postgres().await else { return };
    assert!(place.kill_at("torn", "torn", crash::BEFORE_COMMIT));
    place.end_leases().await;
    assert_eq!(place.call("torn", "torn"), "completed");
    assert_eq!(place.seen("torn").await.orders, ["created", "created"]);
    place.end().await;
}
