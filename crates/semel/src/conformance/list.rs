//! Laws of `get`, `look` and `list`: what operators see.

use std::collections::HashMap;

use super::Harness;
use super::context::{SHORT_MS, Trial, completed, fingerprint, finish, intent_of};
use crate::intent::identity::{Intent, Operation};
use crate::intent::key::Key;
use crate::intent::outcome::Verdict;
use crate::intent::policy::{Effect, Retention};
use crate::intent::scope::Scope;
use crate::intent::state::{Ruling, State};
use crate::store::{Claim, Filter, Finish, Finished, PAGE_RECORDS_MAX, Store};

/// An intent that the store does not know is `None`, not an error.
///
/// Otherwise "no such intent" looks the same as a failing store.
pub async fn an_unknown_intent_is_none<H: Harness>(harness: &H) {
    let trial = Trial::of("an_unknown_intent_is_none", harness).await;
    let shown = trial.answered(trial.store.get(trial.claim("unknown").intent.id()).await);
    trial.check(shown.is_none(), "an unknown intent is shown");
    let page = trial.page(Filter::default()).await;
    trial.check(page.records.is_empty() && page.next.is_none(), "the page of an unknown tenant is not empty");
}

/// `look` shows what `get` shows, also the second time, when a cache may answer: nothing for what is unknown, expired
/// or withdrawn, and otherwise the whole current record.
///
/// Otherwise a caller gets a withdrawn answer, or is refused because of a request that expired long ago.
pub async fn a_cached_get_shows_what_get_shows<H: Harness>(harness: &H) {
    let trial = Trial::of("a_cached_get_shows_what_get_shows", harness).await;
    let same = async |claim: &Claim, what: &str| {
        for _ in 0..2 {
            let looked = trial.answered(trial.store.get_cached(claim.intent.id()).await);
            let got = trial.answered(trial.store.get(claim.intent.id()).await);
            trial.equal(format!("{looked:?}"), format!("{got:?}"), format_args!("a look at {what}"));
        }
    };
    let claim = trial.claim("looked at");
    same(&claim, "nothing").await;
    let ticket = trial.run(&claim).await;
    same(&claim, "what is in progress").await;
    trial.equal(trial.finish(ticket, completed("first")).await, Finished::Recorded, "the outcome");
    same(&claim, "what is completed").await;
    // The store refuses another request under this key, and leaves the record as it is.
    trial.mismatch(&Claim { fingerprint: fingerprint(2), ..trial.claim("looked at") }).await;
    same(&claim, "what another request mismatched").await;
    trial.ruled(&claim, Ruling::Release, None).await;
    same(&claim, "what is withdrawn").await;
    let again = trial.claim("looked at");
    let ticket = trial.run(&again).await;
    same(&again, "what runs again").await;
    trial.equal(trial.finish(ticket, completed("second")).await, Finished::Recorded, "the outcome");
    same(&again, "what is completed again").await;
    for (key, verdict) in [
        ("final", Verdict::FailedFinal),
        ("retryable", Verdict::FailedRetryable),
        ("unsure", Verdict::Uncertain),
    ] {
        let claim = trial.claim(key);
        trial.done(&claim, finish(verdict, None)).await;
        same(&claim, key).await;
    }
    let lapsed = trial.claim("lapsed");
    trial.lapsed(harness, &lapsed).await;
    same(&lapsed, "a lapsed claim").await;
    let expired = trial.claim("expired");
    let short = Finish { retention: Retention::Ms(SHORT_MS), ..completed("forgotten") };
    trial.done(&expired, short).await;
    // Fills the cache, if there is one.
    trial.answered(trial.store.get_cached(expired.intent.id()).await);
    trial.wait(harness, SHORT_MS).await;
    let looked = trial.answered(trial.store.get_cached(expired.intent.id()).await);
    trial.check(looked.is_none(), "an expired record is shown");
}

/// Listing by state uses the current state: an opaque claim that lapsed is uncertain, not in progress.
///
/// Otherwise the payments that need a person are missing from the list.
pub async fn list_filters_by_the_state_that_holds<H: Harness>(harness: &H) {
    let trial = Trial::of("list_filters_by_the_state_that_holds", harness).await;
    trial.run(&trial.claim("running")).await;
    trial.done(&trial.claim("completed"), completed("yes")).await;
    trial.done(&trial.claim("final"), finish(Verdict::FailedFinal, None)).await;
    trial.done(&trial.claim("retryable"), finish(Verdict::FailedRetryable, None)).await;
    trial.done(&trial.claim("unsure"), finish(Verdict::Uncertain, None)).await;
    trial.lapsed(harness, &Claim { effect: Effect::Keyed, ..trial.claim("lapsed keyed") }).await;
    trial.lapsed(harness, &trial.claim("lapsed opaque")).await;
    trial.expired(harness, &trial.claim("expired")).await;
    for (states, keys) in [
        (vec![State::InProgress], vec!["lapsed keyed", "running"]),
        (vec![State::Completed], vec!["completed"]),
        (vec![State::FailedFinal], vec!["final"]),
        (vec![State::FailedRetryable], vec!["retryable"]),
        (vec![State::Uncertain], vec!["lapsed opaque", "unsure"]),
        (vec![State::Completed, State::Uncertain], vec!["completed", "lapsed opaque", "unsure"]),
        (
            vec![],
            vec!["completed", "final", "lapsed keyed", "lapsed opaque", "retryable", "running", "unsure"],
        ),
    ] {
        let what = format!("the records in {states:?}");
        let found = trial.keys(Filter { states, ..Filter::default() }).await;
        trial.equal(found, keys.into_iter().map(str::to_owned).collect(), what);
    }
}

/// Listing by operation shows only that operation, by its whole name.
///
/// Otherwise a runbook for one kind of work is applied to another.
pub async fn list_filters_by_operation<H: Harness>(harness: &H) {
    let trial = Trial::of("list_filters_by_operation", harness).await;
    for operation in ["pay", "pay2", "p_y", "POST /pay/{id}"] {
        trial.run(&trial.claim_of(trial.intent(operation, operation))).await;
    }
    for operation in ["pay", "p_y", "POST /pay/{id}"] {
        let filter = Filter { operation: Some(operation.to_owned()), ..Filter::default() };
        trial.equal(trial.keys(filter).await, vec![operation.to_owned()], "the records of the operation");
    }
    let none = Filter { operation: Some("refund".to_owned()), ..Filter::default() };
    trial.equal(trial.keys(none).await, Vec::<String>::new(), "the records of an unknown operation");
}

/// Listing by tenant shows all actors of that tenant and no other: none with the same prefix, and none that only
/// matches as a pattern.
///
/// Otherwise another customer's records are shown, or decided on.
pub async fn list_filters_by_tenant<H: Harness>(harness: &H) {
    let trial = Trial::of("list_filters_by_tenant", harness).await;
    let base = trial.tenant().to_owned();
    let tenants = ["", "2", "_x", "yx", "/user", "%", "%2Fuser", "Ü"].map(|end| format!("{base}{end}"));
    for tenant in &tenants {
        let plain = trial.claim_of(intent_of(tenant, "op", "plain"));
        let scope = plain.intent.scope().clone().actor("user").expect("a tenant takes an actor");
        let by_actor = Intent::new(scope, plain.intent.operation().clone(), plain.intent.key().clone());
        trial.run(&plain).await;
        trial.run(&trial.claim_of(by_actor)).await;
    }
    for tenant in &tenants {
        let scope = intent_of(tenant, "op", "plain").scope().clone();
        let text = scope.tenant_text().to_owned();
        let page = trial.page(Filter { tenant: Some(text.clone()), ..Filter::default() }).await;
        let mut scopes: Vec<_> = page.records.iter().map(|it| it.intent.scope().as_str()).collect();
        scopes.sort_unstable();
        trial.equal(scopes, vec![text.as_str(), &format!("{text}/user")], "the scopes of the tenant");
    }
    // A service without tenants has the empty one; the operation is unique to this law.
    let operation = Operation::new(&base).expect("a valid operation");
    let key = Key::new("single").expect("a valid key");
    trial.run(&trial.claim_of(Intent::new(Scope::single_tenant(), operation, key))).await;
    let single = Filter { tenant: Some(String::new()), operation: Some(base), ..Filter::default() };
    trial.equal(trial.keys(single).await, vec!["single".to_owned()], "the records of a single tenant");
}

/// Listing by age counts from when the current state began; an opaque claim became uncertain when its lease ended.
///
/// Otherwise work that has hung for hours looks new, and new work looks lost.
pub async fn list_filters_by_age<H: Harness>(harness: &H) {
    let trial = Trial::of("list_filters_by_age", harness).await;
    trial.done(&trial.claim("done"), completed("old")).await;
    trial.wait(harness, SHORT_MS).await;
    trial.lapsed(harness, &trial.claim("lapsed")).await;
    trial.wait(harness, SHORT_MS).await;
    trial.run(&trial.claim("running")).await;
    let all = trial.page(Filter::default()).await;
    trial.equal(all.records.len(), 3, "the number of records");
    let mut begun: Vec<_> = all.records.iter().map(|it| it.since(all.now)).collect();
    begun.sort_unstable();
    for since in begun {
        // The clock goes on meanwhile: the page contains the time it was made.
        let ms = trial.now().await.since_ms(since);
        let page = trial.page(Filter { older_than_ms: Some(ms), ..Filter::default() }).await;
        let mut found: Vec<_> = page.records.iter().map(|it| it.intent.id()).collect();
        let old_enough = all.records.iter().filter(|it| page.now.since_ms(it.since(page.now)) >= ms);
        let mut wanted: Vec<_> = old_enough.map(|it| it.intent.id()).collect();
        found.sort_unstable();
        wanted.sort_unstable();
        trial.check(!wanted.is_empty(), "the test expects no record");
        trial.equal(found, wanted, format_args!("the records at least {ms} ms old"));
    }
    let ancient = Filter { older_than_ms: Some(1 << 40), ..Filter::default() };
    trial.equal(trial.keys(ancient).await, Vec::<String>::new(), "the records decades old");
}

/// The newest record comes first.
///
/// Otherwise the latest problem is on the last page.
pub async fn list_shows_the_newest_first<H: Harness>(harness: &H) {
    let trial = Trial::of("list_shows_the_newest_first", harness).await;
    for number in 0..4 {
        trial.run(&trial.claim(&format!("key-{number}"))).await;
        trial.wait(harness, 2).await;
    }
    let page = trial.page(Filter::default()).await;
    let keys: Vec<_> = page.records.iter().map(|it| it.intent.key().as_str()).collect();
    trial.equal(keys, vec!["key-3", "key-2", "key-1", "key-0"], "the order");
}

/// Paging shows each record that existed all along exactly once, while others are claimed, finished and expired.
///
/// Otherwise a person works through a list that skips a payment.
pub async fn paging_shows_each_record_once<H: Harness>(harness: &H) {
    const RECORDS: usize = 23;
    const LIMIT: usize = 4;
    let trial = Trial::of("paging_shows_each_record_once", harness).await;
    let mut tickets = Vec::new();
    for number in 0..RECORDS {
        tickets.push(trial.run(&trial.claim(&format!("there-{number}"))).await);
    }
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut after = None;
    let mut pages = 0;
    loop {
        let page = trial.page(Filter { after: after.take(), limit: LIMIT, ..Filter::default() }).await;
        trial.check(page.records.len() <= LIMIT, "a page is longer than its limit");
        for record in &page.records {
            *seen.entry(record.intent.key().as_str().to_owned()).or_default() += 1;
        }
        let Some(next) = page.next else { break };
        after = Some(next);
        pages += 1;
        trial.check(pages <= 4 * RECORDS, "paging does not end");
        if let Some(ticket) = tickets.pop() {
            // Adds one that stays and one that expires, and changes an existing one.
            trial.run(&trial.claim(&format!("new-{pages}"))).await;
            let gone = Finish { retention: Retention::Ms(0), ..completed("gone") };
            trial.done(&trial.claim(&format!("gone-{pages}")), gone).await;
            trial.equal(trial.finish(ticket, completed("changed")).await, Finished::Recorded, "a change");
        }
    }
    for number in 0..RECORDS {
        let key = format!("there-{number}");
        trial.equal(seen.get(&key).copied(), Some(1), format_args!("how often {key} was shown"));
    }
    trial.check(seen.values().all(|times| *times == 1), "a record was shown twice");
}

/// A page has no more records than its limit, and never more than [`PAGE_RECORDS_MAX`]; the rest is on the next pages.
///
/// Otherwise listing a busy store uses up the caller's memory.
pub async fn a_page_is_bounded<H: Harness>(harness: &H) {
    const TASKS: usize = 32;
    let trial = Trial::of("a_page_is_bounded", harness).await;
    let records = PAGE_RECORDS_MAX + 5;
    trial
        .together(TASKS, |trial, task| async move {
            for number in (task..records).step_by(TASKS) {
                trial.run(&trial.claim(&format!("key-{number}"))).await;
            }
        })
        .await;
    for limit in [1, 7] {
        let page = trial.page(Filter { limit, ..Filter::default() }).await;
        trial.equal(page.records.len(), limit, "the length of a page");
        trial.check(page.next.is_some(), "a full page has no next one");
    }
    let first = trial.page(Filter { limit: usize::MAX, ..Filter::default() }).await;
    trial.equal(first.records.len(), PAGE_RECORDS_MAX, "the length of the longest page");
    let rest = trial.page(Filter { limit: usize::MAX, after: first.next, ..Filter::default() }).await;
    trial.equal(rest.records.len(), records - PAGE_RECORDS_MAX, "the length of the last page");
    trial.check(rest.next.is_none(), "the last page has a next one");
}

/// An invalid cursor is an error, not a panic and not the first page.
///
/// Otherwise a truncated link shows the wrong records, or crashes the process.
pub async fn a_bad_cursor_is_an_error<H: Harness>(harness: &H) {
    let trial = Trial::of("a_bad_cursor_is_an_error", harness).await;
    trial.run(&trial.claim("one")).await;
    let tenant = Some(trial.tenant().to_owned());
    for cursor in ["", "nonsense", "-", "1-", "-1", "99999999999999999999-ff", "ü\0'\"", "1-zz"] {
        let filter =
            Filter { after: Some(cursor.to_owned()), limit: 5, tenant: tenant.clone(), ..Filter::default() };
        let answer = trial.store.list(filter).await;
        trial.check(answer.is_err(), format_args!("the cursor {cursor:?} was accepted"));
    }
}
