-- Hosts of a service that differ from the rest: a function that has a larger part of the CPU time there than on the
-- others, by how many of the others' standard deviations.
WITH used AS (
    SELECT host, leaf, SUM(cpu_ns) AS cpu
    FROM samples
    WHERE service = 'shop.service'
      AND time >= TIMESTAMP '2026-11-21 00:00:00' AND time < TIMESTAMP '2026-11-22 00:00:00'
    GROUP BY host, leaf
), whole AS (
    SELECT host, SUM(cpu) AS host_cpu FROM used GROUP BY host
), hosts AS (
    SELECT COUNT(*) AS n FROM whole
), named AS (
    SELECT used.host AS host, frames.name AS name, frames.file AS file, SUM(used.cpu) AS own_cpu
    FROM used JOIN frames ON frames.frame = used.leaf
    GROUP BY used.host, frames.name, frames.file
), shares AS (
    SELECT named.host AS host, named.name AS name, named.file AS file, named.own_cpu / whole.host_cpu AS share
    FROM named JOIN whole ON whole.host = named.host
), ranked AS (
    SELECT host, name, file, share, ROW_NUMBER() OVER (PARTITION BY name, file ORDER BY share) AS place,
           COUNT(*) OVER (PARTITION BY name, file) AS has
    FROM shares
), usual AS (
    -- Of the middle half, so that those who differ do not hide each other; 1.349 of them are its width.
    SELECT name, file, AVG(share) AS middle, (MAX(share) - MIN(share)) / 1.349 AS spread
    FROM ranked WHERE place > has * 0.25 AND place <= has * 0.75
    GROUP BY name, file
)
SELECT shares.host AS host, shares.name AS name, shares.file AS file, shares.share AS share, usual.middle AS usual_share,
       (shares.share - usual.middle) / (usual.spread + 1e-6) AS deviations
FROM shares JOIN usual ON usual.name = shares.name AND usual.file = shares.file CROSS JOIN hosts
WHERE hosts.n >= 8 AND shares.share - usual.middle > 0.01
  AND (shares.share - usual.middle) / (usual.spread + 1e-6) > 6.0
ORDER BY deviations DESC, host, name
LIMIT 100
