"""Stripe's own SDK against the gateway. Arguments: the gateway's URL, rounds. Prints what came of it, as JSON."""

import io
import json
import sys
import time

import stripe

GIVE_UP = 10


class Counting(stripe.RequestsClient):
    """Counts what the SDK sends, its own retries included."""

    sent = 0

    def request(self, *args, **kwargs):
        Counting.sent += 1
        return super().request(*args, **kwargs)


stripe.api_key = "sk_test_semel"
stripe.api_base = stripe.upload_api_base = sys.argv[1]
stripe.max_network_retries = 5
stripe.enable_telemetry = False
client = stripe.default_http_client = Counting(timeout=20)


def pay(key, amount=4200):
    return stripe.PaymentIntent.create(amount=amount, currency="eur", idempotency_key=key)


def until_paid(key):
    """What the SDK gave up on is sent again with the same key, as an application's job would do."""
    # Shorter than a late answer takes: the SDK gives up and retries.
    client._timeout = 0.5 if key.startswith("late") else 20
    for attempt in range(1, GIVE_UP + 1):
        try:
            return {"id": pay(key).id, "calls": attempt}
        except (stripe.APIError, stripe.APIConnectionError):
            time.sleep(0.3)
    return {"id": None, "calls": GIVE_UP}


def refused(call):
    """The error a call ends with, and how often the SDK sent it."""
    Counting.sent = 0
    try:
        call()
    except stripe.StripeError as error:
        return {
            "error": type(error).__name__,
            "code": error.json_body["error"]["code"],
            "should_retry": error.headers["Stripe-Should-Retry"],
            "sent": Counting.sent,
        }
    return {"error": None, "sent": Counting.sent}


def upload(key):
    file = io.BytesIO(b"%PDF-1.4 evidence")
    file.name = "evidence.pdf"
    made = stripe.File.create(purpose="dispute_evidence", file=file, idempotency_key=key)
    return {"id": made.id, "replayed": made.last_response.headers.get("Idempotent-Replayed")}


paid = {}
for n in range(int(sys.argv[2])):
    for behaviour in ("ok", "late", "error", "lost", "stuck", "dropped"):
        paid[f"{behaviour}-{n}"] = until_paid(f"{behaviour}-{n}")

client._timeout = 20
print(json.dumps({
    "version": stripe.VERSION,
    "paid": paid,
    "sent": Counting.sent,
    "again": pay("ok-0").id,
    "mismatch": refused(lambda: pay("ok-0", amount=1)),
    "uncertain": refused(lambda: stripe.Refund.create(payment_intent="pi_1", idempotency_key="lost-refund")),
    "still_uncertain": refused(lambda: stripe.Refund.create(payment_intent="pi_1", idempotency_key="lost-refund")),
    "files": [upload("file-0"), upload("file-0")],
}))
