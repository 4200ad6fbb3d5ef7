-- The lowest seq of transactions that began after a snapshot was taken, one chunk at a time: after ($1, $2), before $3.
SELECT chunk.xid::text, chunk.seq, min(chunk.seq) OVER () AS lowest
FROM (
    SELECT xid, seq FROM semel_outbox
    WHERE (xid, seq) > ($1::text::xid8, $2::bigint) AND xid < $3::text::xid8
    ORDER BY xid, seq LIMIT $4::bigint
) chunk
ORDER BY chunk.xid DESC, chunk.seq DESC LIMIT 1
