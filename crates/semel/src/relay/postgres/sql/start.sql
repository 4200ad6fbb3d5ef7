-- Lineage and version of the tables, and the lineages recorded in the cursors. A cursor that has seen transactions that
-- are still to come was not written in this cluster.
SELECT (SELECT lineage::text FROM semel_outbox_meta) AS lineage,
       (SELECT version FROM semel_outbox_meta) AS version,
       ARRAY(SELECT DISTINCT lineage FROM semel_outbox_cursor WHERE lineage IS NOT NULL) AS stored,
       EXISTS (
           SELECT FROM semel_outbox_cursor
           WHERE pg_snapshot_xmax(coalesce(high, low)) > pg_snapshot_xmax(pg_current_snapshot())
       ) AS ahead
