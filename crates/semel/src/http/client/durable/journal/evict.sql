-- Answers are kept as a convenience: the oldest make room.
DELETE FROM intent
WHERE seq IN (SELECT seq FROM intent WHERE state = 3 ORDER BY seq LIMIT max(0, ?1))
