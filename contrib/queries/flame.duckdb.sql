-- Folded stacks of any selection, with microseconds: what flamegraph programs read. DuckDB.
WITH used AS (
    SELECT stack_id, any_value(stack) AS stack, SUM(cpu_ns) AS cpu
    FROM samples
    WHERE service = 'shop.service' AND version = '2.0'
      AND time >= TIMESTAMP '2026-11-21 12:00:00' AND time < TIMESTAMP '2026-11-21 13:00:00'
    GROUP BY stack_id
), framed AS (
    SELECT stack_id, cpu, unnest(stack) AS frame, generate_subscripts(stack, 1) AS place FROM used
), lines AS (
    SELECT framed.stack_id, any_value(framed.cpu) AS cpu,
           string_agg(replace(frames.name, ';', ':'), ';' ORDER BY framed.place) AS line
    FROM framed JOIN frames ON frames.frame = framed.frame
    GROUP BY framed.stack_id
)
SELECT line, CAST(SUM(cpu) / 1000 AS BIGINT) AS cpu_us FROM lines GROUP BY line ORDER BY cpu_us DESC, line
