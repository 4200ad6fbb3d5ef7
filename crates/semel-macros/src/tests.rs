//! What the attributes expand to: a few lines that a reader of `cargo expand` recognises.

use quote::quote;

use crate::idempotent::expand;
use crate::{saga, step};

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

#[test]
fn a_step_becomes_a_type_with_the_traits_of_a_step() {
    let options = quote!(
        keyed,
        safe_for = "24h",
        timeout = "5s",
        undo = release,
        lookup = find,
        attempts = 3,
        concurrent = 20
    );
    let function = quote! {
        /// Holds stock.
        #[cfg(shop)]
        pub async fn reserve(at: At<'_, Shop>, r: &Reserve) -> StepResult<Hold> { hold(at, r).await }
    };
    let expanded = quote! {
        /// Holds stock.
        #[cfg(shop)]
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        pub struct reserve;

        #[cfg(shop)]
        impl ::semel::saga::StepType for reserve {
            type Input = Reserve;
            type Output = Hold;
            type Undo = ::semel::saga::HasUndo;

            fn spec(&self) -> ::semel::saga::StepSpec {
                ::semel::saga::StepSpec::keyed("reserve")
                    .safe_for(::core::time::Duration::from_millis(86400000u64))
                    .timeout(::core::time::Duration::from_millis(5000u64))
                    .with_lookup()
                    .attempts_max(3u32)
                    .concurrent_max(20u32)
            }
        }

        #[cfg(shop)]
        impl ::semel::saga::SagaStep<Shop> for reserve {
            async fn run(
                &self, step_at: ::semel::saga::At<'_, Shop>, step_input: &Self::Input
            ) -> ::semel::saga::StepResult<Self::Output> {
                #[allow(clippy::ptr_arg)]
                async fn reserve(at: At<'_, Shop>, r: &Reserve) -> StepResult<Hold> { hold(at, r).await }
                reserve(step_at, step_input).await
            }
            async fn undo(
                &self, step_at: ::semel::saga::At<'_, Shop>, step_input: &Self::Input,
                step_result: ::core::option::Option<Self::Output>
            ) -> ::semel::saga::StepResult<()> {
                release(step_at, step_input, step_result).await
            }
            async fn look_up(
                &self, step_at: ::semel::saga::At<'_, Shop>, step_input: &Self::Input
            ) -> ::semel::saga::LookedUp<Self::Output> {
                find(step_at, step_input).await
            }
        }
    };
    assert_eq!(step::expand(options, function).unwrap().to_string(), expanded.to_string());
}

#[test]
fn an_atomic_step_gets_the_transaction() {
    let function = quote! {
        async fn create(tx: &mut StepTx<'_>, _: At<'_, Shop>, o: &Order) -> StepResult<i64> { insert(tx, o) }
    };
    let expanded = quote! {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        struct create;

        impl ::semel::saga::StepType for create {
            type Input = Order;
            type Output = i64;
            type Undo = ::semel::saga::HasUndo;

            fn spec(&self) -> ::semel::saga::StepSpec {
                ::semel::saga::StepSpec::atomic("orders.create")
            }
        }

        impl ::semel::saga::AtomicStep<Shop> for create {
            async fn run(
                &self, step_tx: &mut ::semel::saga::StepTx<'_>, step_at: ::semel::saga::At<'_, Shop>,
                step_input: &Self::Input
            ) -> ::semel::saga::StepResult<Self::Output> {
                #[allow(clippy::ptr_arg)]
                async fn create(tx: &mut StepTx<'_>, _: At<'_, Shop>, o: &Order) -> StepResult<i64> { insert(tx, o) }
                create(step_tx, step_at, step_input).await
            }
            async fn undo(
                &self, step_tx: &mut ::semel::saga::StepTx<'_>, step_at: ::semel::saga::At<'_, Shop>,
                step_input: &Self::Input, step_result: Self::Output
            ) -> ::semel::saga::StepResult<()> {
                orders::cancel(step_tx, step_at, step_input, step_result).await
            }
        }
    };
    let options = quote!(atomic, undo = orders::cancel, name = "orders.create");
    assert_eq!(step::expand(options, function).unwrap().to_string(), expanded.to_string());
}

#[test]
fn a_saga_declares_the_steps_that_its_body_names() {
    let function = quote! {
        async fn checkout(s: Saga<Shop>, o: Order) -> SagaResult<String> {
            let (id, _) = tokio::join!(s.run(create, o.clone()), async { s.run(stock::reserve, o.sku).await });
            for line in &o.lines { s.run::<reserve>(reserve, line.run(1)).await?; s.run(create, 1).await?; }
            let (paid, s) = s.pivot(charge, Charge { id, cents: task.run(now) }).await?;
            Ok(paid)
        }
    };
    let expanded = quote! {
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        struct checkout;

        impl ::core::convert::From<checkout> for ::semel::saga::Definition<Shop, Order, String> {
            fn from(_: checkout) -> Self {
                #[allow(unused_imports)]
                use ::semel::saga::attribute::{DeclareAtomic as _, DeclareRemote as _};
                let definition = {
                    #function
                    ::semel::saga::Definition::new("checkout", 2u32, checkout)
                };
                let definition = definition
                    .deadline(::core::time::Duration::from_millis(900000u64))
                    .retention(::semel::Retention::Ms(604800000u64));
                let definition = ::semel::saga::attribute::DeclaredStep(create).declare(definition);
                let definition = ::semel::saga::attribute::DeclaredStep(stock::reserve).declare(definition);
                let definition = ::semel::saga::attribute::DeclaredStep(reserve).declare(definition);
                let definition = ::semel::saga::attribute::DeclaredStep(charge).declare(definition);
                let definition = ::semel::saga::attribute::DeclaredStep(mail).declare(definition);
                definition
            }
        }
    };
    let options = quote!(version = 2, deadline = "15m", retention = "7d", steps(charge, mail));
    assert_eq!(saga::expand(options, function).unwrap().to_string(), expanded.to_string());
}
