//! What the attribute expands to: a few lines that a reader of `cargo expand` recognises.

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
                .set(|policy| policy.retention = ::semel::Retention::Ms(604800000u64))
                .set(|policy| policy.in_flight = ::semel::InFlight::Wait(::core::time::Duration::from_millis(2000u64)))
                .call(&self.guard, &merchant, &order.key()?, &(&order, &cents,));
            call.run(move |attempt| async move {
                provider(cents, attempt.child("charge")).await?
            }).await
        }
    };
    assert_eq!(expand(options, function).unwrap().to_string(), expanded.to_string());
}

#[test]
fn only_a_variable_of_the_guard_is_left_out_of_the_fingerprint() {
    let asked = |guard: proc_macro2::TokenStream| {
        let function = quote! {
            async fn charge(payments: P, key: Key) -> Result<R, OnceError> { Ok(1) }
        };
        let options = quote!(operation = "pay", guard = #guard, single_tenant, key = key);
        let expanded = expand(options, function).unwrap().to_string();
        (expanded.contains("& (& payments ,"), expanded.contains("fingerprint_revision"))
    };
    for used in [
        quote!(payments),
        quote!(&payments),
        quote!(payments.guard()),
        quote!(of(payments)),
        quote!(all[..payments]),
    ] {
        assert_eq!(asked(used.clone()), (false, false), "{used}");
    }
    for named in
        [quote!(state.payments), quote!(state.payments()), quote!(payments::guard()), quote!(crate::payments)]
    {
        assert_eq!(asked(named.clone()), (true, true), "{named}");
    }
    assert_eq!(asked(quote!(guard())), (true, false));
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
            _: ::semel::attribute::HandlerClaim<create>, Json(payment): Json<Payment>
        ) -> impl IntoResponse { StatusCode::CREATED }

        #[doc = "The declaration of the handler `create`."]
        #[allow(non_camel_case_types)]
        enum create {}

        impl create {
            /// The rule of its operation, for the layer: `POST /payments` and the like.
            fn rule(route: &str) -> ::semel::http::Rule {
                ::semel::attribute::operation("payment.create")
                    .set(|policy| policy.lease = ::core::time::Duration::from_millis(60000u64))
                    .rule(route)
            }
        }

        impl ::semel::attribute::Declared for create {
            const OPERATION: &'static str = "payment.create";
        }
    };
    assert_eq!(expanded.unwrap().to_string(), expected.to_string());
}
