-- The file is ahead of the machine's clock: the age of these intents is unknown, so none is sent again. The ends of
-- their leases are unknown, too; a lost claim does no harm.
UPDATE intent
SET until = min(until, ?1), owner = NULL, lease_until = 0,
    why = 'the clock of this machine was set back while the journal was closed, so the age of this intent is unknown'
WHERE state < 3
