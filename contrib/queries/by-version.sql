-- The part of a service's CPU time that each function used itself, by version.
WITH used AS (
    SELECT version, leaf, SUM(cpu_ns) AS cpu
    FROM samples
    WHERE service = 'shop.service'
      AND time >= TIMESTAMP '2026-11-21 00:00:00' AND time < TIMESTAMP '2026-11-22 00:00:00'
    GROUP BY version, leaf
), whole AS (
    SELECT version, SUM(cpu) AS all_cpu FROM used GROUP BY version
), named AS (
    SELECT used.version AS version, frames.name AS name, frames.file AS file, SUM(used.cpu) AS own_cpu
    FROM used JOIN frames ON frames.frame = used.leaf
    GROUP BY used.version, frames.name, frames.file
)
SELECT named.name AS name, named.file AS file, named.version AS version,
       named.own_cpu / 1e9 AS own_cpu_s, named.own_cpu / whole.all_cpu AS own_share
FROM named JOIN whole ON whole.version = named.version
ORDER BY own_cpu_s DESC, name, version
LIMIT 80
