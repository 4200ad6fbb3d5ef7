//! Text is what was sent: every character, and in its case.

use semel::store::{Claimed, Filter, Store};

use super::support::*;

#[tokio::test]
async fn any_tenant_comes_back_and_is_found() {
    let Some(database) = Database::new().await else { return };
    let store = database.store().await;
    let tenants =
        ["🦀 & söhne", "a%_b", "x", "x ", "X", "'; DROP TABLE semel_intent; -- \\", "{ids}", "é", "e\u{301}"];
    for (n, tenant) in tenants.iter().enumerate() {
        let intent = intent_of(tenant, "pay", &n.to_string());
        let claim = semel::store::Claim { intent, ..claim_of("k") };
        run_of(&store, &claim).await;
    }
    for tenant in tenants {
        let wanted = semel::Scope::tenant(tenant).unwrap().tenant_text().to_owned();
        let filter = Filter { tenant: Some(wanted.clone()), ..Filter::default() };
        let page = store.list(filter).await.unwrap();
        let found: Vec<_> = page.records.iter().map(|record| record.intent.scope().tenant_text()).collect();
        assert_eq!(found, [wanted]);
    }
}

#[tokio::test]
async fn keys_and_operations_that_differ_in_case_differ() {
    let Some(database) = Database::new().await else { return };
    differ_in_case(&database).await;
}

/// Also run where a bug is planted.
pub(super) async fn differ_in_case(database: &Database) {
    let store = database.store().await;
    for (operation, key) in [("pay", "k1"), ("pay", "K1"), ("Pay", "k1"), ("PAY", "K1")] {
        let claim = semel::store::Claim { intent: intent_of("acme", operation, key), ..claim_of("k") };
        let ticket = run_of(&store, &claim).await;
        store.finish(ticket, completed(&format!("{operation} {key}"))).await.unwrap();
        let Claimed::Replay(met) = store.claim(claim.clone()).await.unwrap() else { panic!("no replay") };
        let body = format!("{operation} {key}");
        assert_eq!(met.record.outcome, completed(&body).outcome);
        let record = store.get(claim.intent.id()).await.unwrap().expect("the record");
        assert_eq!(record.intent, claim.intent, "stored as {:?}", record.intent);
        let filter = Filter { operation: Some(operation.to_owned()), ..Filter::default() };
        let listed = store.list(filter).await.unwrap().records;
        assert!(listed.iter().all(|record| record.intent.operation().as_str() == operation), "{listed:?}");
    }
}
