-- What a deploy at 12:00 changed: each function's part of the service's CPU time in the six hours before and after, with the
-- confidence that it is not chance. The unit is the host (samples of one host depend on each other): the mean of the
-- hosts' shares on each side, Welch's statistic z, the normal distribution (Page's approximation, within 0.00014), and
-- Bonferroni's correction for as many functions as are compared. Needs about ten hosts or more.
WITH used AS (
    SELECT host, CASE WHEN time < TIMESTAMP '2026-11-21 12:00:00' THEN 0 ELSE 1 END AS side, leaf, SUM(cpu_ns) AS cpu
    FROM samples
    WHERE service = 'shop.service'
      AND time >= TIMESTAMP '2026-11-21 06:00:00' AND time < TIMESTAMP '2026-11-21 18:00:00'
    GROUP BY host, CASE WHEN time < TIMESTAMP '2026-11-21 12:00:00' THEN 0 ELSE 1 END, leaf
), whole AS (
    SELECT host, side, SUM(cpu) AS host_cpu FROM used GROUP BY host, side
), hosts AS (
    SELECT side, COUNT(*) AS n FROM whole GROUP BY side
), named AS (
    SELECT used.host AS host, used.side AS side, frames.name AS name, frames.file AS file, SUM(used.cpu) AS own_cpu
    FROM used JOIN frames ON frames.frame = used.leaf
    GROUP BY used.host, used.side, frames.name, frames.file
), shares AS (
    SELECT named.side AS side, named.name AS name, named.file AS file, named.own_cpu / whole.host_cpu AS share
    FROM named JOIN whole ON whole.host = named.host AND whole.side = named.side
), sums AS (
    SELECT side, name, file, SUM(share) AS s1, SUM(share * share) AS s2 FROM shares GROUP BY side, name, file
), means AS (
    SELECT sums.side AS side, sums.name AS name, sums.file AS file, sums.s1 / hosts.n AS mean,
           GREATEST(sums.s2 - sums.s1 * sums.s1 / hosts.n, 0.0) / (hosts.n - 1) / hosts.n AS error2
    FROM sums JOIN hosts ON hosts.side = sums.side
    WHERE hosts.n > 1
), pairs AS (
    SELECT name, file,
           SUM(CASE WHEN side = 0 THEN mean ELSE 0.0 END) AS before_share,
           SUM(CASE WHEN side = 1 THEN mean ELSE 0.0 END) AS after_share,
           SUM(error2) AS both_error2
    FROM means GROUP BY name, file
), scored AS (
    SELECT name, file, before_share, after_share, after_share - before_share AS change,
           LEAST(ABS(after_share - before_share) / SQRT(both_error2 + 1e-18), 9.0) AS z
    FROM pairs
), compared AS (
    SELECT COUNT(*) AS functions FROM scored
)
SELECT scored.name AS name, scored.file AS file, scored.before_share AS before_share, scored.after_share AS after_share,
       scored.change AS change, scored.z AS z,
       GREATEST(1.0 - compared.functions * 2.0 / (1.0 + EXP(0.07056 * scored.z * scored.z * scored.z + 1.5976 * scored.z)), 0.0)
           AS confidence
FROM scored CROSS JOIN compared
ORDER BY ABS(scored.change) DESC, name
LIMIT 40
