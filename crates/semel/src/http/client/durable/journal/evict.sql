-- Answers are kept only as a convenience: the oldest are deleted first.
DELETE FROM intent
WHERE seq IN (SELECT seq FROM intent WHERE state = 3 ORDER BY seq LIMIT max(0, ?1))
