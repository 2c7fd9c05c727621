-- The functions of a service that use the most CPU time, over all hosts: themselves, and with what they call.
WITH used AS (
    SELECT stack_id, any_value(stack) AS stack, any_value(leaf) AS leaf, SUM(cpu_ns) AS cpu
    FROM samples
    WHERE service = 'shop.service'
      AND time >= TIMESTAMP '2026-11-21 00:00:00' AND time < TIMESTAMP '2026-11-22 00:00:00'
    GROUP BY stack_id
), whole AS (
    SELECT SUM(cpu) AS all_cpu FROM used
), framed AS (
    SELECT stack_id, cpu, explode(stack) AS frame FROM used
), named AS (
    -- A function that calls itself counts once.
    SELECT DISTINCT framed.stack_id AS stack_id, framed.cpu AS cpu, frames.name AS name, frames.file AS file
    FROM framed JOIN frames ON frames.frame = framed.frame
), total AS (
    SELECT name, file, SUM(cpu) AS total_cpu FROM named GROUP BY name, file
), own AS (
    SELECT frames.name AS name, frames.file AS file, SUM(used.cpu) AS own_cpu
    FROM used JOIN frames ON frames.frame = used.leaf
    GROUP BY frames.name, frames.file
)
SELECT total.name AS name, total.file AS file,
       COALESCE(own.own_cpu, 0) / 1e9 AS own_cpu_s, COALESCE(own.own_cpu, 0) / whole.all_cpu AS own_share,
       total.total_cpu / 1e9 AS total_cpu_s, total.total_cpu / whole.all_cpu AS total_share
FROM total LEFT JOIN own ON own.name = total.name AND own.file = total.file CROSS JOIN whole
ORDER BY own_cpu_s DESC, total_cpu_s DESC, name
LIMIT 40
