-- The lowest seq of those that began after a snapshot was taken, a piece at a time: behind ($1, $2), before $3.
SELECT piece.xid::text, piece.seq, min(piece.seq) OVER () AS lowest
FROM (
    SELECT xid, seq FROM semel_outbox
    WHERE (xid, seq) > ($1::text::xid8, $2::bigint) AND xid < $3::text::xid8
    ORDER BY xid, seq LIMIT $4::bigint
) piece
ORDER BY piece.xid DESC, piece.seq DESC LIMIT 1
