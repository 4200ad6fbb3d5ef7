//! What the attribute expands to: few lines, that a reader of `cargo expand` knows again.

use quote::quote;

use super::*;

#[test]
fn a_function_becomes_a_call_with_its_body_as_the_work() {
    let options = quote! {
        operation = "payment.create", retention = "7d", in_flight = "wait:2s",
        guard = self.guard, scope = merchant, key = order.key()?, skip(database), attempt = attempt
    };
    let function = quote! {
        /// Charges.
        pub async fn charge(
            self: Arc<Self>, merchant: Scope, order: Order, cents: u32, database: Pool,
        ) -> Result<Receipt, OnceError> {
            provider(cents, attempt.child("charge")).await?
        }
    };
    let expanded = quote! {
        /// Charges.
        pub async fn charge(
            self: Arc<Self>, merchant: Scope, order: Order, cents: u32, database: Pool,
        ) -> Result<Receipt, OnceError> {
            let call = ::semel::attribute::operation("payment.create")
                .retention(::semel::Retention::Ms(604800000u64))
                .in_flight(::semel::InFlight::Wait(::core::time::Duration::from_millis(2000u64)))
                .call(&self.guard, &merchant, &order.key()?, &(&order, &cents,));
            call.run(move |attempt| async move {
                provider(cents, attempt.child("charge")).await?
            }).await
        }
    };
    assert_eq!(expand(options, function).unwrap().to_string(), expanded.to_string());
}

#[test]
fn a_handler_gets_a_rule_beside_it_and_a_claim_in_front() {
    let handler = quote! {
        async fn create(Json(payment): Json<Payment>) -> impl IntoResponse { StatusCode::CREATED }
    };
    let expanded = expand(quote!(operation = "payment.create", lease = "1m"), handler);
    if !cfg!(feature = "axum") {
        return assert!(expanded.unwrap_err().to_string().contains("feature `axum` is off"));
    }
    let expected = quote! {
        async fn create(
            _: ::semel::attribute::Claimed<create>, Json(payment): Json<Payment>
        ) -> impl IntoResponse { StatusCode::CREATED }

        #[doc = "What is declared of the handler `create`."]
        #[allow(non_camel_case_types)]
        enum create {}

        impl create {
            /// The rule of its operation, for the layer: `POST /payments` and the like.
            fn rule(route: &str) -> ::semel::http::Rule {
                ::semel::attribute::operation("payment.create")
                    .lease(::core::time::Duration::from_millis(60000u64))
                    .rule(route)
            }
        }

        impl ::semel::attribute::Declared for create {
            const OPERATION: &'static str = "payment.create";
        }
    };
    assert_eq!(expanded.unwrap().to_string(), expected.to_string());
}
