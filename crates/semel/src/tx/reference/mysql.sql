-- A provider's references for the results of intents, each once. Compared byte by byte: ch_a and CH_A are two
-- charges.
CREATE TABLE IF NOT EXISTS semel_reference (
    provider  VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reference VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    intent    BINARY(32) NOT NULL,
    PRIMARY KEY (provider, reference),
    KEY semel_reference_intent (intent)
) ENGINE = InnoDB;
