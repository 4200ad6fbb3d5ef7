-- A provider's references for the results of intents, each once.
CREATE TABLE IF NOT EXISTS semel_reference (
    provider  TEXT NOT NULL,
    reference TEXT NOT NULL,
    intent    BLOB NOT NULL,
    PRIMARY KEY (provider, reference)
) STRICT;

CREATE INDEX IF NOT EXISTS semel_reference_intent ON semel_reference (intent);
