"""Signs each line of JSON on stdin with the providers' own packages: {"scheme", "secret", "id", "at", "body"}."""

import datetime
import json
import sys

from standardwebhooks.webhooks import Webhook as Standard
from stripe import WebhookSignature
from svix.webhooks import Webhook as Svix

for line in sys.stdin:
    asked = json.loads(line)
    if asked["scheme"] == "stripe":
        signed = WebhookSignature.generate_signature_header(asked["body"], asked["secret"], asked["at"])
    else:
        signer = {"standard": Standard, "svix": Svix}[asked["scheme"]](asked["secret"])
        at = datetime.datetime.fromtimestamp(asked["at"], tz=datetime.timezone.utc)
        signed = signer.sign(asked["id"], at, asked["body"])
    print(signed, flush=True)
