-- A provider's references for the results of intents, each once.
CREATE TABLE IF NOT EXISTS semel_reference (
    provider  text  NOT NULL,
    reference text  NOT NULL,
    intent    bytea NOT NULL,
    PRIMARY KEY (provider, reference)
);

CREATE INDEX IF NOT EXISTS semel_reference_intent ON semel_reference (intent);
