-- The file is ahead of the machine's clock: how old these are is not known, so none of them is sent again. Nor is it known when
-- their claims end; one that is lost does no harm.
UPDATE intent
SET until = min(until, ?1), owner = NULL, lease_until = 0,
    why = 'the clock of this machine was set back while the journal was closed: how old it is is not known'
WHERE state < 3
